#!/bin/bash
# Builds the newest peers of hz from their sources: build.sh FOLDER [NAME...] leaves FOLDER/lib/*.so. It takes 20 minutes on two CPUs.
# `new` of too much throws, but returns NULL in rpmalloc and ends the process in tcmalloc.
# Needs git, cmake, autoconf, a C++20 compiler, and clang++ (CLANGXX), newer than 14, for tcmalloc. A source that is in FOLDER/src is taken as it is.
set -euo pipefail
mkdir -p "$1/src" "$1/lib"
cd "$1"
shift
names=("$@")
[ $# -gt 0 ] || names=(jemalloc mimalloc rpmalloc snmalloc google-tcmalloc)
cmake_release() { cmake -S "src/$1" -B "build/$1" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$PWD/installed" "${@:2}"; }

source_of() { # NAME REPOSITORY TAG-OR-COMMIT
    [ -d "src/$1" ] && return
    git init -q "src/$1"
    git -C "src/$1" fetch -q --depth 1 "https://github.com/$2" "$3"
    git -C "src/$1" checkout -q FETCH_HEAD
}

build_jemalloc() {
    source_of jemalloc jemalloc/jemalloc 5.3.1
    (cd src/jemalloc && ./autogen.sh --with-version=5.3.1-0-g0 --disable-doc && make -j2 build_lib_shared)
    cp src/jemalloc/lib/libjemalloc.so.2 lib
}

build_mimalloc() { # as C++: `new` of too much throws; built as C it returns NULL
    source_of mimalloc microsoft/mimalloc v3.4.3
    cmake_release mimalloc -DMI_USE_CXX=ON -DMI_BUILD_TESTS=OFF -DMI_BUILD_STATIC=OFF -DMI_BUILD_OBJECT=OFF
    cmake --build build/mimalloc -j2
    cp build/mimalloc/libmimalloc.so.3 lib
}

build_rpmalloc() {
    source_of rpmalloc mjansson/rpmalloc 2.0.1
    cc -O3 -DNDEBUG -DENABLE_OVERRIDE=1 -DENABLE_PRELOAD=1 -fPIC -shared -pthread -ftls-model=initial-exec \
        src/rpmalloc/rpmalloc/rpmalloc.c -o lib/librpmallocwrap.so
}

build_snmalloc() {
    source_of snmalloc microsoft/snmalloc 0.7.5
    cmake_release snmalloc -DSNMALLOC_BUILD_TESTING=OFF
    cmake --build build/snmalloc -j2 --target snmallocshim
    cp build/snmalloc/libsnmallocshim.so lib
}

build_google-tcmalloc() { # its CMake wants protobuf and fuzztest, for tests alone
    source_of abseil abseil/abseil-cpp 20260526.0
    source_of tcmalloc google/tcmalloc fce3f55de93a0dd7611990d9bfcf96db426e01dc
    local cxx=${CLANGXX:-clang++} file
    cmake_release abseil -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_STANDARD=17 -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
        -DABSL_BUILD_TESTING=OFF
    cmake --build build/abseil -j2 --target install
    mkdir -p build/tcmalloc
    for file in src/tcmalloc/tcmalloc/{,internal/}*.cc src/tcmalloc/tcmalloc/internal/percpu_rseq_asm.S; do
        case $file in
            *_test.cc | *_benchmark.cc | *_fuzz.cc | */mock_* | */want_* | *_helper.cc | */profile_* | *_unsupported.cc | *_default_on.cc) ;;
            *) echo "$file" ;;
        esac
    done | xargs -P2 -I{} sh -c "$cxx"' -std=c++17 -O2 -DNDEBUG -DTCMALLOC_INTERNAL_8K_PAGES -fPIC \
        -fno-omit-frame-pointer -w -Iinstalled/include -Isrc/tcmalloc -c "$1" -o "build/tcmalloc/$(basename "$1").o"' sh {}
    # Abseil's own names stay inside: a program may bring another Abseil.
    echo '{ global: malloc*; free*; cfree; calloc; realloc*; *memalign; aligned_alloc*; alloc_at_least; valloc; pvalloc; mall*;
        sdallocx; nallocx; _Zn*; _Zd*; MallocExtension_*; local: *; };' >build/tcmalloc/exports
    file=libgoogle-tcmalloc.so.2026.8.21 # it has no versions: that commit's day
    "$cxx" -shared -pthread -Wl,--gc-sections,-soname,libgoogle-tcmalloc.so,--version-script,build/tcmalloc/exports \
        build/tcmalloc/*.o -Wl,--start-group installed/lib*/libabsl_*.a -Wl,--end-group -o lib/$file
    ln -sf $file lib/libgoogle-tcmalloc.so
}

for name in "${names[@]}"; do
    "build_$name"
done
