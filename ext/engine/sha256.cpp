#include "sha256.h"

#include <algorithm>
#include <functional>

namespace ipyllama {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::uint32_t rotate(std::uint32_t word, int n) {
    return word >> n | word << (32 - n);
}

} // namespace

void Sha256::block(const std::uint8_t *bytes) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) {
        const auto *at = bytes + 4 * i;
        w[i] = std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
    }
    for (std::size_t i = 16; i < 64; ++i) {
        const auto before_15 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        const auto before_2 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + before_15 + w[i - 7] + before_2;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
        const auto sum_e = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
        const auto t1 = h + sum_e + ((e & f) ^ (~e & g)) + constants[i] + w[i];
        const auto sum_a = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
        const auto t2 = sum_a + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
    std::transform(state_.begin(), state_.end(), added.begin(), state_.begin(), std::plus<>());
}

void Sha256::update(const void *data, std::size_t size) {
    const auto *bytes = static_cast<const std::uint8_t *>(data);
    std::size_t filled = size_ % 64;
    size_ += size;
    while (size > 0) {
        if (filled == 0 && size >= 64) { // whole blocks need no copy
            block(bytes);
            bytes += 64, size -= 64;
            continue;
        }
        const std::size_t n = std::min(size, 64 - filled);
        std::copy_n(bytes, n, rest_.begin() + static_cast<std::ptrdiff_t>(filled));
        bytes += n, size -= n, filled += n;
        if (filled == 64) {
            block(rest_.data());
            filled = 0;
        }
    }
}

std::string Sha256::hex_digest() {
    const std::uint64_t bits = size_ * 8;
    static constexpr std::uint8_t padding[64] = {0x80};
    update(padding, 1 + (64 + 55 - size_ % 64) % 64);
    std::uint8_t length[8];
    for (int i = 0; i < 8; ++i) {
        length[i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
    }
    update(length, 8);
    std::string digest;
    for (const std::uint32_t word : state_) {
        for (int shift = 28; shift >= 0; shift -= 4) {
            digest += "0123456789abcdef"[word >> shift & 15];
        }
    }
    return digest;
}

} // namespace ipyllama
