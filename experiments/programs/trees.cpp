// Builds and drops binary trees of 65,535 nodes, each node by itself, as programs with large
// structures of small objects do.
//
//     trees ROUNDS     prints a sum over the trees

#include <cstdlib>
#include <iostream>
#include <memory>

namespace {

constexpr int kDepth = 15;

struct Node {
    std::unique_ptr<Node> left, right;
    long depth;
};

std::unique_ptr<Node> grow(int depth) {
    auto node = std::make_unique<Node>();
    node->depth = depth;
    if (depth > 0) {
        node->left = grow(depth - 1);
        node->right = grow(depth - 1);
    }
    return node;
}

long total(const Node *node) {
    return node == nullptr ? 0 : node->depth + total(node->left.get()) + total(node->right.get());
}

} // namespace

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 0;
    if (rounds < 1) {
        std::cerr << "usage: trees ROUNDS\n";
        return 2;
    }
    long sum = 0;
    for (int round = 0; round < rounds; round++)
        sum += total(grow(kDepth).get());
    std::cout << sum << "\n";
    return 0;
}
