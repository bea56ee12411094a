#include "grammar_scan.h"

#include <algorithm>
#include <cstring>

#include "grammar.h"

namespace ipyllama {
namespace {

constexpr std::size_t longest_token = 256;
constexpr std::size_t shown = 20; // bytes of the text in a message

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || is_digit(c);
}
bool is_continuation(char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) == 0x80;
}

// Bytes of the UTF-8 character at `text`, which ends in NUL; 0 if it is not one.
std::size_t character_size(const char *text) {
    const auto first = static_cast<unsigned char>(*text);
    const std::size_t size = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
    for (std::size_t i = 1; i < size; ++i) {
        if (!is_continuation(text[i])) {
            return 0;
        }
    }
    return size;
}

std::string excerpt(const std::string &text, std::size_t place) {
    auto end = std::min({text.size(), place + shown, text.find_first_of(std::string("\r\n\0", 3), place)});
    while (end < text.size() && end > place && is_continuation(text[end])) {
        --end;
    }
    return end > place ? " at '" + text.substr(place, end - place) + "'" : "";
}

} // namespace

GrammarError grammar_error(const std::string &text, std::size_t place, const std::string &message) {
    const auto line_begin = place == 0 ? std::string::npos : text.rfind('\n', place - 1);
    const auto first = line_begin == std::string::npos ? 0 : line_begin + 1;
    const auto begin = text.begin();
    const auto at = begin + static_cast<std::ptrdiff_t>(place);
    const auto line = std::count(begin, at, '\n') + 1;
    const auto column =
        std::count_if(begin + static_cast<std::ptrdiff_t>(first), at, [](char c) { return !is_continuation(c); }) + 1;
    return {"line " + std::to_string(line) + ", column " + std::to_string(column) + " of the grammar" +
                excerpt(text, place) + ": " + message,
            static_cast<int>(line), static_cast<int>(column)};
}

bool GrammarScanner::at_digit() const {
    return is_digit(*at_);
}
bool GrammarScanner::at_word() const {
    return is_word(*at_);
}

void GrammarScanner::fail(const std::string &message, const char *place) const {
    throw grammar_error(text_, place_of(place), message);
}

void GrammarScanner::expect(bool ok, const char *what) const {
    if (!ok) {
        fail(std::string("expecting ") + what, at_);
    }
}

void GrammarScanner::check_characters() const {
    for (const char *p = text_.c_str(); p < text_.c_str() + text_.size();) {
        const auto size = character_size(p);
        if (size == 0 || *p == '\0') {
            fail(size == 0 ? "this is not UTF-8" : "a NUL character cannot be part of it", p);
        }
        p += size;
    }
}

void GrammarScanner::skip_space(bool newlines) {
    while (*at_ == ' ' || *at_ == '\t' || *at_ == '#' || (newlines && (*at_ == '\r' || *at_ == '\n'))) {
        if (*at_ == '#') {
            at_ += std::strcspn(at_, "\r\n");
        } else {
            ++at_;
        }
    }
}

std::string GrammarScanner::read_name() {
    const char *begin = at_;
    while (is_word(*at_)) {
        ++at_;
    }
    expect(at_ != begin, "the name of a rule");
    return {begin, at_};
}

std::uint64_t GrammarScanner::read_number() {
    const char *begin = at_;
    while (is_digit(*at_)) {
        ++at_;
    }
    expect(at_ != begin, "a whole number");
    if (at_ - begin > 10) {
        fail("this number is too large", begin);
    }
    return std::stoull(std::string(begin, at_));
}

std::uint64_t GrammarScanner::read_literal() {
    std::uint64_t size = 0;
    for (++at_; *at_ != '"'; ++size) {
        read_character();
    }
    ++at_;
    return size;
}

std::uint64_t GrammarScanner::read_class() {
    const char *begin = at_;
    std::uint64_t size = 0;
    at_ += at_[1] == '^' ? 2 : 1;
    for (; *at_ != ']'; ++size) {
        const char *low_begin = at_;
        const auto low = read_character();
        if (*at_ == '-' && at_[1] != ']') {
            ++at_;
            if (read_character() < low) {
                fail("this range ends before it begins", low_begin);
            }
            ++size;
        }
    }
    if (size == 0) {
        fail("these brackets hold no character", begin);
    }
    ++at_;
    return size;
}

std::uint32_t GrammarScanner::read_hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
        const char c = *at_;
        const int digit = is_digit(c)            ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        expect(digit >= 0, (std::to_string(digits) + " hexadecimal digits").c_str());
        value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    return value;
}

std::uint32_t GrammarScanner::read_character() {
    if (*at_ == '\\') {
        const char escape = at_[1];
        at_ += 2;
        switch (escape) {
        case 'x':
            return read_hex(2);
        case 'u':
            return read_hex(4);
        case 'U':
            return read_hex(8);
        case 't':
            return '\t';
        case 'r':
            return '\r';
        case 'n':
            return '\n';
        case '\\':
        case '"':
        case '[':
        case ']':
        case '-':
            return static_cast<std::uint32_t>(escape);
        default:
            fail("unknown escape: known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH", at_ - 2);
        }
    }
    expect(*at_ != '\0', "the closing quote or bracket");
    const auto size = character_size(at_);
    const auto first = static_cast<unsigned char>(*at_);
    std::uint32_t value = size == 1 ? first : first & (0xFFU >> (size + 1));
    for (std::size_t i = 1; i < size; ++i) {
        value = value << 6U | (static_cast<unsigned char>(at_[i]) & 0x3FU);
    }
    at_ += size;
    return value;
}

void GrammarScanner::read_token() {
    at_ += *at_ == '!' ? 1 : 0;
    const char *begin = at_;
    expect(*at_ == '<', "'<'");
    if (at_[1] == '[') {
        at_ += 2;
        const auto id = read_number();
        if (id >= static_cast<std::uint64_t>(llama_vocab_n_tokens(vocab_))) {
            fail("the vocabulary has no token " + std::to_string(id), begin);
        }
        expect(*at_ == ']' && at_[1] == '>', "']>'");
        at_ += 2;
        return;
    }
    at_ += std::strcspn(at_, ">");
    expect(*at_ == '>', "'>'");
    ++at_;
    const auto size = static_cast<std::size_t>(at_ - begin);
    llama_token ids[2];
    if (size > longest_token || llama_tokenize(vocab_, begin, static_cast<int>(size), ids, 2, false, true) != 1) {
        fail("this is not one token of the vocabulary", begin);
    }
}

} // namespace ipyllama
