// Eight threads work one after the other, as a pool does between bursts: each builds a list of
// small blocks, drops all but the last ones, and stays. An allocator with a heap for each thread
// keeps eight times what one heap would do with.
//
//     phases ROUNDS     prints a sum of what was built

#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 8;
constexpr int kBlocks = 12000;
constexpr int kKept = 40;

std::uint64_t build(std::vector<std::string> &kept, int self) {
    std::vector<std::string> blocks;
    for (int i = 0; i < kBlocks; i++)
        blocks.emplace_back(800 + static_cast<std::size_t>((i * 31 + self) % 600), 'x');
    std::uint64_t sum = 0;
    for (const auto &block : blocks)
        sum += block.size();
    kept.assign(blocks.end() - kKept, blocks.end());
    return sum;
}

} // namespace

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 0;
    if (rounds < 1) {
        std::cerr << "usage: phases ROUNDS\n";
        return 2;
    }
    std::barrier<> step(kThreads);
    std::vector<std::uint64_t> sums(kThreads);
    std::vector<std::thread> threads;
    for (int self = 0; self < kThreads; self++)
        threads.emplace_back([&, self] {
            std::vector<std::string> kept;
            for (int turn = 0; turn < rounds * kThreads; turn++) {
                if (turn % kThreads == self)
                    sums[static_cast<std::size_t>(self)] += build(kept, self);
                step.arrive_and_wait();
            }
        });
    for (auto &thread : threads)
        thread.join();
    std::uint64_t total = 0;
    for (std::uint64_t sum : sums)
        total += sum;
    std::cout << total << "\n";
    return 0;
}
