// Four threads pass batches of messages round a ring of queues: strings and maps that one thread
// makes and another destroys, as servers written in C++ do.
//
//     messages ROUNDS     prints a sum of what was passed

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4;
constexpr std::size_t kMostWaiting = 8;
constexpr int kBatch = 32;

struct Message {
    std::map<int, std::string> fields;
    std::vector<std::uint64_t> trace;
};

using Batch = std::vector<std::unique_ptr<Message>>;

class Queue {
  public:
    void put(Batch batch) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return waiting_.size() < kMostWaiting; });
        waiting_.push_back(std::move(batch));
        changed_.notify_all();
    }

    Batch take() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !waiting_.empty(); });
        Batch batch = std::move(waiting_.front());
        waiting_.pop_front();
        changed_.notify_all();
        return batch;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Batch> waiting_;
};

std::unique_ptr<Message> compose(int round, int self) {
    auto message = std::make_unique<Message>();
    for (int field = 0; field < 12; field++) {
        std::size_t length = 20 + static_cast<std::size_t>((round * 37 + field * 101 + self) % 400);
        message->fields[field] = std::string(length, static_cast<char>('a' + field));
    }
    message->trace.assign(16 + static_cast<std::size_t>(round % 48), 1);
    return message;
}

Batch compose_batch(int round, int self) {
    Batch batch;
    for (int i = 0; i < kBatch; i++)
        batch.push_back(compose(round * kBatch + i, self));
    return batch;
}

std::uint64_t digest(const Message &message) {
    std::uint64_t sum = message.trace.size();
    for (const auto &[key, text] : message.fields)
        sum += text.size() * static_cast<std::uint64_t>(key + 1);
    return sum;
}

} // namespace

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 0;
    if (rounds < 1) {
        std::cerr << "usage: messages ROUNDS\n";
        return 2;
    }
    std::vector<Queue> queues(kThreads);
    std::vector<std::uint64_t> sums(kThreads);
    std::vector<std::thread> threads;
    for (int self = 0; self < kThreads; self++)
        threads.emplace_back([&, self] {
            for (int round = 0; round < rounds; round++) {
                queues[static_cast<std::size_t>((self + 1) % kThreads)].put(compose_batch(round, self));
                for (const auto &message : queues[static_cast<std::size_t>(self)].take())
                    sums[static_cast<std::size_t>(self)] += digest(*message);
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
