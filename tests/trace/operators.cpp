/*
 * Every form of C++'s operators new and delete, once.
 */
#include <cstddef>
#include <new>

int main()
{
    const std::align_val_t align{128};
    void *blocks[] = {
        ::operator new(201),
        ::operator new[](202),
        ::operator new(203, std::nothrow),
        ::operator new[](204, std::nothrow),
        ::operator new(205, align),
        ::operator new[](206, align),
        ::operator new(207, align, std::nothrow),
        ::operator new[](208, align, std::nothrow),
    };
    ::operator delete(blocks[0]);
    ::operator delete[](blocks[1], std::size_t{202});
    ::operator delete(blocks[2], std::nothrow);
    ::operator delete[](blocks[3]);
    ::operator delete(blocks[4], align);
    ::operator delete[](blocks[5], std::size_t{206}, align);
    ::operator delete(blocks[6], align, std::nothrow);
    ::operator delete[](blocks[7], align);
    void *const volatile refused = ::operator new(static_cast<std::size_t>(1) << 60, std::nothrow);
    return refused == nullptr ? 0 : 1;
}
