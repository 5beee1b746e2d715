// All forms of operator new and delete: plain, array, nothrow, sized, aligned; bad_alloc and the
// new-handler loop.
#include "check.h"

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>

namespace
{

constexpr std::size_t too_much = std::size_t{1} << 62;
volatile std::size_t impossible = std::numeric_limits<std::size_t>::max() - 64;

struct alignas(256) wide {
    char bytes[1000];
};

void fill(void *block, std::size_t size)
{
    require(block != nullptr, "new of %zu bytes gave null", size);
    std::memset(block, 0x4b, size);
}

CHECK("plain and array forms give blocks")
{
    for (std::size_t size = 0; size < 100000; size = size * 2 + 1) {
        void *one = ::operator new(size);
        void *many = ::operator new[](size);
        fill(one, size);
        fill(many, size);
        require(one != many, "two blocks of %zu bytes are one", size);
        ::operator delete(one);
        ::operator delete[](many);
    }
}

CHECK("sized deletes take blocks back")
{
    for (std::size_t size = 1; size < 100000; size = size * 2 + 1) {
        ::operator delete(::operator new(size), size);
        ::operator delete[](::operator new[](size), size);
    }
}

CHECK("nothrow forms give blocks and take them back")
{
    for (std::size_t size = 1; size < 100000; size = size * 2 + 1) {
        ::operator delete(::operator new(size, std::nothrow), std::nothrow);
        ::operator delete[](::operator new[](size, std::nothrow), std::nothrow);
    }
}

CHECK("aligned forms give aligned blocks and take them back")
{
    for (std::size_t alignment = 16; alignment <= 65536; alignment *= 2) {
        const auto at = static_cast<std::align_val_t>(alignment);
        void *blocks[] = {::operator new(1000, at), ::operator new[](1000, at),
                          ::operator new(1000, at, std::nothrow),
                          ::operator new[](1000, at, std::nothrow)};
        for (void *block : blocks) {
            require(reinterpret_cast<std::uintptr_t>(block) % alignment == 0, "new at %zu gave %p",
                    alignment, block);
            fill(block, 1000);
        }
        ::operator delete(blocks[0], at);
        ::operator delete[](blocks[1], 1000, at);
        ::operator delete(blocks[2], at, std::nothrow);
        ::operator delete[](blocks[3], at, std::nothrow);
        ::operator delete(::operator new(1000, at), 1000, at);
        ::operator delete[](::operator new[](1000, at), at);
    }
}

CHECK("over-aligned objects and arrays lie where they should")
{
    for (int i = 0; i < 100; i++) {
        wide *one = new wide;
        wide *many = new wide[7];
        require(reinterpret_cast<std::uintptr_t>(one) % 256 == 0, "an object lies at %p",
                static_cast<void *>(one));
        require(reinterpret_cast<std::uintptr_t>(many) % 256 == 0, "an array lies at %p",
                static_cast<void *>(many));
        delete one;
        delete[] many;
    }
}

CHECK("delete of null does nothing")
{
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
    ::operator delete (nullptr, std::size_t{8});
    ::operator delete (nullptr, std::align_val_t{64});
    ::operator delete[](nullptr, std::size_t{8}, std::align_val_t{64});
    ::operator delete(nullptr, std::nothrow);
}

template <typename New> void require_bad_alloc(const char *form, New make)
{
    for (const std::size_t size : {too_much, static_cast<std::size_t>(impossible)}) {
        bool thrown = false;
        try {
            void *block = make(size);
            require(false, "%s of %zu bytes gave %p", form, size, block);
        } catch (const std::bad_alloc &) {
            thrown = true;
        }
        require(thrown, "%s of %zu bytes threw nothing", form, size);
    }
}

CHECK("throwing forms throw bad_alloc for impossible sizes")
{
    constexpr auto at = std::align_val_t{128};
    require_bad_alloc("new", [](std::size_t size) { return ::operator new(size); });
    require_bad_alloc("new[]", [](std::size_t size) { return ::operator new[](size); });
    require_bad_alloc("aligned new", [](std::size_t size) { return ::operator new(size, at); });
    require_bad_alloc("aligned new[]", [](std::size_t size) { return ::operator new[](size, at); });
}

CHECK("nothrow forms give null for impossible sizes")
{
    constexpr auto at = std::align_val_t{128};
    for (const std::size_t size : {too_much, static_cast<std::size_t>(impossible)}) {
        require(::operator new(size, std::nothrow) == nullptr, "new of %zu bytes gave a block",
                size);
        require(::operator new[](size, std::nothrow) == nullptr, "new[] of %zu bytes gave a block",
                size);
        require(::operator new(size, at, std::nothrow) == nullptr,
                "aligned new of %zu bytes gave a block", size);
        require(::operator new[](size, at, std::nothrow) == nullptr,
                "aligned new[] of %zu bytes gave a block", size);
    }
}

CHECK("a new expression of a negative length throws")
{
    volatile long length = -1;
    bool thrown = false;
    try {
        delete[] new int[static_cast<std::size_t>(length)];
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    require(thrown, "it did not");
}

int handler_calls;

void handler_that_gives_up_the_third_time()
{
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

struct own_error {
};
void handler_that_throws()
{
    throw own_error{};
}

CHECK("the new-handler is called until it gives up")
{
    std::set_new_handler(handler_that_gives_up_the_third_time);
    bool thrown = false;
    try {
        ::operator delete(::operator new(too_much));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    require(thrown && handler_calls == 3, "the handler ran %d times", handler_calls);
}

CHECK("nothrow new calls the new-handler too")
{
    std::set_new_handler(handler_that_gives_up_the_third_time);
    require(::operator new(too_much, std::nothrow) == nullptr, "it gave a block");
    require(handler_calls == 3, "the handler ran %d times", handler_calls);
}

CHECK("an exception of the new-handler gets out of new")
{
    std::set_new_handler(handler_that_throws);
    bool thrown = false;
    try {
        ::operator delete(::operator new(too_much));
    } catch (const own_error &) {
        thrown = true;
    }
    require(thrown, "it did not");
    std::set_new_handler(nullptr);
}

CHECK("a bad_alloc of the new-handler gives null from nothrow new")
{
    std::set_new_handler([] { throw std::bad_alloc{}; });
    require(::operator new(too_much, std::nothrow) == nullptr, "it gave a block");
}

} // namespace
