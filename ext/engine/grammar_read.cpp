// The reader: llama.cpp's dialect of GBNF, as its own parser takes it.
#include "grammar.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "grammar_scan.h"

namespace ipyllama {
namespace {

constexpr std::uint64_t most_repetitions = 2000; // upstream takes a larger maximum for none at all
constexpr std::uint64_t most_elements = 1U << 19;
constexpr int most_nesting = 200;

class Reader : private GrammarScanner {
  public:
    Reader(const std::string &text, const llama_vocab *vocab) : GrammarScanner(text, vocab) {}

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
        } else if (at_word()) {
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
            max = at_digit() ? read_number() : no_limit;
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

    GrammarRules found_;
    std::map<std::string, int> names_;
    std::uint64_t n_symbols_ = 0; // upstream's names, its own for groups and repetitions among them
};

} // namespace

GrammarRules read_grammar(const std::string &text, const llama_vocab *vocab) {
    return Reader(text, vocab).read();
}

} // namespace ipyllama
