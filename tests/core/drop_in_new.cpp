/*
 * A C++ program that is linked to libhz.a runs on hz without a preload: operator new and delete in
 * all forms, and what the C++ library makes.
 */
#include <hz/hz.h>

#include <cstdint>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace
{

constexpr std::size_t too_large = std::size_t(1) << 62;
int handler_calls;

struct alignas(256) aligned {
    char text[600];
};

std::size_t live()
{
    return hz_usage_now().live_bytes;
}

void require_ours(void *block, std::size_t before, const char *what)
{
    require(live() == before + hz_usable_size(block), "%s is not hz's", what);
}

CHECK("operator new and delete are hz's in all forms")
{
    delete new char;
    const std::size_t before = live();
    char *one = new char[100];
    require_ours(one, before, "new[]");
    delete[] one;
    one = new (std::nothrow) char[3000];
    require_ours(one, before, "new[] that does not throw");
    delete[] one;
    auto *wide = new aligned;
    require(reinterpret_cast<std::uintptr_t>(wide) % alignof(aligned) == 0, "misaligned");
    require_ours(wide, before, "aligned new");
    delete wide;
    wide = new (std::nothrow) aligned;
    require_ours(wide, before, "aligned new that does not throw");
    delete wide;
    require(live() == before, "%zu bytes are lost", live() - before);
}

void failure_throws()
{
    bool thrown = false;
    try {
        operator delete(operator new(too_large));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    require(thrown, "no bad_alloc");
}

CHECK("the new handler is called, and may throw")
{
    std::set_new_handler([] {
        if (++handler_calls == 3) std::set_new_handler(nullptr);
    });
    void *block = operator new(too_large, std::nothrow);
    require(block == nullptr, "%p", block);
    require(handler_calls == 3, "the handler was called %d times", handler_calls);
    std::set_new_handler([] { throw std::bad_alloc(); });
    require(operator new(too_large, std::nothrow) == nullptr, "a handler's exception is lost");
}

CHECK("the blocks of the C++ library are hz's")
{
    delete new char;
    const std::size_t before = live();
    {
        std::map<int, std::string> texts;
        for (int i = 0; i < 2000; i++) texts[i] = std::string(100 + i % 7, 'x');
        require(live() >= before + 2000 * 100, "the blocks of a map are not hz's");
    }
    require(live() == before, "%zu bytes are lost", live() - before);
}

CHECK("exceptions pass in threads")
{
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([] {
            for (int round = 0; round < 200; round++) failure_throws();
        });
    }
    for (auto &thread : threads) thread.join();
}

} // namespace
