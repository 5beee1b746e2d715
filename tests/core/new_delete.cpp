// All forms of operator new and delete: plain, array, nothrow, sized, aligned; bad_alloc and the
// new-handler loop. Preloaded, and linked to libhz.a.
#include "check.h"

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include <sys/resource.h>

namespace
{

constexpr std::size_t too_much = std::size_t{1} << 62;
volatile std::size_t impossible = std::numeric_limits<std::size_t>::max() - 64;

struct alignas(256) wide {
    char bytes[1000];
};

void *filled(void *block, std::size_t size, std::size_t alignment = 16)
{
    require(block != nullptr, "new of %zu bytes gave null", size);
    require(reinterpret_cast<std::uintptr_t>(block) % alignment == 0, "new at %zu gave %p",
            alignment, block);
    return std::memset(block, 0x4b, size);
}

CHECK("all forms give blocks and take them back")
{
    for (std::size_t size = 0; size < 100000; size = size * 2 + 1) {
        void *one = filled(::operator new(size), size);
        void *many = filled(::operator new[](size), size);
        require(one != many, "two blocks of %zu bytes are one", size);
        ::operator delete(one);
        ::operator delete[](many);
        ::operator delete(::operator new(size), size);
        ::operator delete[](::operator new[](size), size);
        ::operator delete(filled(::operator new(size, std::nothrow), size), std::nothrow);
        ::operator delete[](filled(::operator new[](size, std::nothrow), size), std::nothrow);
    }
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
    ::operator delete (nullptr, std::size_t{8});
    ::operator delete (nullptr, std::align_val_t{64});
    ::operator delete[](nullptr, std::size_t{8}, std::align_val_t{64});
    ::operator delete(nullptr, std::nothrow);
}

CHECK("aligned forms give aligned blocks and take them back")
{
    for (std::size_t alignment = 16; alignment <= 65536; alignment *= 2) {
        const auto at = static_cast<std::align_val_t>(alignment);
        ::operator delete(filled(::operator new(1000, at), 1000, alignment), at);
        ::operator delete[](filled(::operator new[](1000, at), 1000, alignment), 1000, at);
        ::operator delete(filled(::operator new(1000, at, std::nothrow), 1000, alignment), at,
                          std::nothrow);
        ::operator delete[](filled(::operator new[](1000, at, std::nothrow), 1000, alignment), at,
                            std::nothrow);
        ::operator delete(::operator new(1000, at), 1000, at);
        ::operator delete[](::operator new[](1000, at), at);
    }
    for (int i = 0; i < 100; i++) {
        delete static_cast<wide *>(filled(new wide, sizeof(wide), 256));
        delete[] static_cast<wide *>(filled(new wide[7], 7 * sizeof(wide), 256));
    }
}

template <typename Error = std::bad_alloc, typename Make>
void require_thrown(const char *form, Make make)
{
    bool thrown = false;
    try {
        void *block = make();
        require(false, "%s gave %p", form, block);
    } catch (const Error &) {
        thrown = true;
    }
    require(thrown, "%s threw nothing", form);
}

void require_all_refused()
{
    constexpr auto at = std::align_val_t{128};
    for (const std::size_t size : {too_much, static_cast<std::size_t>(impossible)}) {
        require_thrown("new", [=] { return ::operator new(size); });
        require_thrown("new[]", [=] { return ::operator new[](size); });
        require_thrown("aligned new", [=] { return ::operator new(size, at); });
        require_thrown("aligned new[]", [=] { return ::operator new[](size, at); });
        for (void *block :
             {::operator new(size, std::nothrow), ::operator new[](size, std::nothrow),
              ::operator new(size, at, std::nothrow), ::operator new[](size, at, std::nothrow)})
            require(block == nullptr, "a nothrow form of %zu bytes gave %p", size, block);
    }
}

CHECK("impossible sizes throw bad_alloc, or give null, in every thread")
{
    volatile long length = -1;
    require_all_refused();
    require_thrown("new of a negative length",
                   [=] { return new int[static_cast<std::size_t>(length)]; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) threads.emplace_back(require_all_refused);
    for (auto &thread : threads) thread.join();
}

int handler_calls;

void handler_that_gives_up_the_third_time()
{
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

struct own_error {
};

CHECK("the new-handler is called until it gives up, and may throw")
{
    std::set_new_handler(handler_that_gives_up_the_third_time);
    require_thrown("new", [] { return ::operator new(too_much); });
    require(handler_calls == 3, "the handler ran %d times", handler_calls);
    handler_calls = 0;
    std::set_new_handler(handler_that_gives_up_the_third_time);
    require(::operator new(too_much, std::nothrow) == nullptr, "it gave a block");
    require(handler_calls == 3, "the handler ran %d times", handler_calls);
    handler_calls = 0;
    std::set_new_handler(handler_that_gives_up_the_third_time);
    require_thrown("new at 3", [] { return ::operator new(16, std::align_val_t{3}); });
    require(handler_calls == 0, "the handler ran %d times", handler_calls);
    std::set_new_handler([] { throw own_error{}; });
    require_thrown<own_error>("new", [] { return ::operator new(too_much); });
    std::set_new_handler([] { throw std::bad_alloc{}; });
    require(::operator new(too_much, std::nothrow) == nullptr, "it gave a block");
}

CHECK("a form that throws nothing gives what its handler made room for, at an alignment of 1, too")
{
    static constexpr rlimit none{0, RLIM_INFINITY}, all{RLIM_INFINITY, RLIM_INFINITY};
    std::set_new_handler([] {
        (void)setrlimit(RLIMIT_AS, &all);
        std::set_new_handler(nullptr);
    });
    require(setrlimit(RLIMIT_AS, &none) == 0, "no limit");
    void *block = ::operator new(std::size_t{1} << 30, std::align_val_t{1}, std::nothrow);
    require(block != nullptr, "no block");
}

} // namespace
