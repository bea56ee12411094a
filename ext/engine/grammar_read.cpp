// The reader: llama.cpp's dialect of GBNF, as its own parser takes it.
#include "grammar.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace ipyllama {
namespace {

constexpr std::uint64_t most_repetitions = 2000; // upstream takes a larger maximum for none at all
constexpr std::uint64_t most_elements = 1U << 19;
constexpr int most_nesting = 200;
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

class Reader {
  public:
    Reader(const std::string &text, const llama_vocab *vocab) : text_(text), vocab_(vocab), at_(text.c_str()) {}

    GrammarRules read() {
        check_characters();
        skip_space(true);
        while (*at_ != '\0') {
            read_rule();
        }
        return std::move(found_);
    }

  private:
    using Sequence = std::vector<GrammarItem>;

    std::size_t place_of(const char *place) const { return static_cast<std::size_t>(place - text_.c_str()); }

    [[noreturn]] void fail(const std::string &message, const char *place) const {
        throw grammar_error(text_, place_of(place), message);
    }
    void expect(bool ok, const char *what) const {
        if (!ok) {
            fail(std::string("expecting ") + what, at_);
        }
    }

    void check_characters() const {
        for (const char *p = text_.c_str(); p < text_.c_str() + text_.size();) {
            const auto size = character_size(p);
            if (size == 0 || *p == '\0') {
                fail(size == 0 ? "this is not UTF-8" : "a NUL character cannot be part of it", p);
            }
            p += size;
        }
    }

    void skip_space(bool newlines) {
        while (*at_ == ' ' || *at_ == '\t' || *at_ == '#' || (newlines && (*at_ == '\r' || *at_ == '\n'))) {
            if (*at_ == '#') {
                at_ += std::strcspn(at_, "\r\n");
            } else {
                ++at_;
            }
        }
    }

    std::string read_name() {
        const char *begin = at_;
        while (is_word(*at_)) {
            ++at_;
        }
        expect(at_ != begin, "the name of a rule");
        return {begin, at_};
    }

    std::uint64_t read_number() {
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

    int rule_named(const std::string &name, const char *place) {
        const auto [entry, added] = names_.emplace(name, static_cast<int>(found_.rules.size()));
        if (added) {
            add_rule(name, place);
        }
        return entry->second;
    }

    int add_rule(const std::string &name, const char *place) {
        found_.rules.push_back({name, place_of(place), false, false, {}});
        ++n_symbols_;
        return static_cast<int>(found_.rules.size()) - 1;
    }

    void count(std::uint64_t elements, const char *place) {
        found_.n_elements += elements;
        if (found_.n_elements > most_elements) {
            fail("up to here the grammar grows to more than " + std::to_string(most_elements) +
                     " elements: repeat less, or shorter parts",
                 place);
        }
    }

    void read_rule() {
        const char *begin = at_;
        const std::string name = read_name();
        const int rule = rule_named(name, begin);
        skip_space(false);
        expect(std::strncmp(at_, "::=", 3) == 0, "::=");
        at_ += 3;
        skip_space(true);
        read_alternatives(rule, 0);
        if (*at_ == '\r') {
            at_ += at_[1] == '\n' ? 2 : 1;
        } else if (*at_ == '\n') {
            ++at_;
        } else {
            expect(*at_ == '\0', "a part of a rule, a new line or the end");
        }
        found_.rules[static_cast<std::size_t>(rule)].place = place_of(begin);
        skip_space(true);
    }

    // A rule that is defined twice is what its last definition says, as upstream has it.
    void read_alternatives(int rule, int depth) {
        std::vector<Sequence> alternatives;
        alternatives.push_back(read_sequence(rule, depth));
        while (*at_ == '|') {
            ++at_;
            skip_space(true);
            alternatives.push_back(read_sequence(rule, depth));
        }
        count(alternatives.size(), at_);
        auto &found = found_.rules[static_cast<std::size_t>(rule)];
        found.alternatives = std::move(alternatives);
        found.defined = true;
    }

    Sequence read_sequence(int rule, int depth) {
        Sequence sequence;
        bool repeatable = false;
        std::uint64_t n_rules = 1; // that upstream makes out of the last item: what its limit counts
        for (;;) {
            const char *begin = at_;
            std::uint64_t min = 0;
            std::uint64_t max = no_limit;
            if (read_repetition(min, max, depth)) {
                if (!repeatable) {
                    fail("expecting something to repeat before this", begin);
                }
                n_rules *= max != no_limit && max > 0 ? max : std::max<std::uint64_t>(min, 1);
                if (n_rules > most_repetitions) {
                    fail("what is repeated and how often exceed " + std::to_string(most_repetitions) +
                             " rules together: repeat less, or simpler parts",
                         begin);
                }
                repeat(sequence, rule, min, max, begin);
                repeatable = max > 0;
                skip_space(depth > 0);
                continue;
            }
            const auto before = n_symbols_;
            GrammarItem item;
            item.place = place_of(begin);
            if (!read_item(item, rule, depth)) {
                return sequence;
            }
            n_rules = *begin == '(' ? std::max<std::uint64_t>(n_symbols_ - before, 1) : 1;
            repeatable = item.size > 0;
            count(item.size, begin);
            if (repeatable) {
                sequence.push_back(item);
            }
            skip_space(depth > 0);
        }
    }

    bool read_item(GrammarItem &item, int rule, int depth) {
        if (*at_ == '"') {
            item.size = read_literal();
        } else if (*at_ == '[') {
            item.size = read_class();
        } else if (*at_ == '<' || *at_ == '!') {
            read_token();
        } else if (*at_ == '.') {
            ++at_;
        } else if (is_word(*at_)) {
            const char *begin = at_;
            item.rule = rule_named(read_name(), begin);
        } else if (*at_ == '(') {
            item.rule = read_group(rule, depth);
        } else {
            return false;
        }
        return true;
    }

    int read_group(int rule, int depth) {
        if (depth == most_nesting) {
            fail("more than " + std::to_string(most_nesting) + " brackets are open", at_);
        }
        const int group = add_rule(found_.rules[static_cast<std::size_t>(rule)].name, at_);
        ++at_;
        skip_space(true);
        read_alternatives(group, depth + 1);
        expect(*at_ == ')', "')'");
        ++at_;
        return group;
    }

    std::uint64_t read_literal() {
        std::uint64_t size = 0;
        for (++at_; *at_ != '"'; ++size) {
            read_character();
        }
        ++at_;
        return size;
    }

    std::uint64_t read_class() {
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

    std::uint32_t read_hex(int digits) {
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

    std::uint32_t read_character() {
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

    void read_token() {
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

    bool read_repetition(std::uint64_t &min, std::uint64_t &max, int depth) {
        const char *begin = at_;
        switch (*at_) {
        case '*':
            break;
        case '+':
            min = 1;
            break;
        case '?':
            max = 1;
            break;
        case '{':
            read_bounds(min, max, depth);
            if (min > most_repetitions || (max != no_limit && max > most_repetitions)) {
                fail("more than " + std::to_string(most_repetitions) + " repetitions cannot be counted: write {" +
                         std::to_string(std::min(min, most_repetitions)) + ",} for no limit",
                     begin);
            }
            if (max < min) {
                fail("the most repetitions are fewer than the least", begin);
            }
            return true;
        default:
            return false;
        }
        ++at_;
        return true;
    }

    void read_bounds(std::uint64_t &min, std::uint64_t &max, int depth) {
        auto space = [&] { skip_space(depth > 0); };
        ++at_;
        space();
        min = max = read_number();
        space();
        if (*at_ == ',') {
            ++at_;
            space();
            max = is_digit(*at_) ? read_number() : no_limit;
            space();
            expect(*at_ == '}', "'}'");
        }
        expect(*at_ == '}', "',' or '}'");
        ++at_;
    }

    void repeat(Sequence &sequence, int rule, std::uint64_t min, std::uint64_t max, const char *place) {
        GrammarItem &item = sequence.back();
        if (item.min != 1 || item.max != 1) { // repeated already: that becomes a rule of its own
            const int inner = add_rule(found_.rules[static_cast<std::size_t>(rule)].name, place);
            auto &made = found_.rules[static_cast<std::size_t>(inner)];
            made.alternatives = {{item}};
            made.defined = made.inlined = true;
            --n_symbols_; // upstream makes none
            item = {inner, item.size * std::max<std::uint64_t>(item.min, 1), 1, 1, item.place};
        }
        const auto n_optional = max == no_limit ? 1 : max - min;
        n_symbols_ += n_optional;
        count(item.size * min + n_optional * (item.size + 3), place);
        item.min = min;
        item.max = max;
        if (max == 0) {
            sequence.pop_back();
        }
    }

    const std::string &text_;
    const llama_vocab *vocab_;
    const char *at_;
    GrammarRules found_;
    std::map<std::string, int> names_;
    std::uint64_t n_symbols_ = 0; // upstream's names, its own for groups and repetitions among them
};

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

GrammarRules read_grammar(const std::string &text, const llama_vocab *vocab) {
    return Reader(text, vocab).read();
}

} // namespace ipyllama
