// What a grammar that reads well would still do to llama.cpp.
#include "grammar.h"

#include <algorithm>

namespace ipyllama {
namespace {

constexpr std::size_t most_text = 1U << 20;
constexpr double most_search = 1e6;   // steps of upstream's own search for left recursion, which forgets where it was
constexpr double most_searches = 1e8; // of all rules together
constexpr double most_starts = 1U << 14; // ways to begin at one place: upstream keeps and compares all of them
constexpr int most_chained = 20000;      // rules that begin with each other: upstream calls itself once for each

// The rules as a graph: which may be empty, which begin with which, and what that costs.
class Graph {
  public:
    Graph(const std::string &text, const std::vector<GrammarRule> &rules)
        : text_(text), rules_(rules), may_be_empty_(rules.size(), false), search_(rules.size(), 0.0),
          starts_(rules.size(), 0.0), chained_(rules.size(), 0) {}

    void check() {
        find_empty();
        for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
            visit(rule);
        }
        for (const GrammarRule &rule : rules_) { // every place inside, now that all rules are counted
            for (const auto &sequence : rule.alternatives) {
                for (const GrammarItem &item : sequence) {
                    if (item.max == no_limit && item.rule >= 0 && is_optional(item.rule)) {
                        throw grammar_error(text_, item.place, "this may be empty, and is repeated without limit");
                    }
                }
                if (largest_start(sequence) > most_starts) {
                    fail(rule, "there are too many ways to go on inside of this rule");
                }
            }
        }
    }

  private:
    using Sequence = std::vector<GrammarItem>;

    [[noreturn]] void fail(const GrammarRule &rule, const std::string &message) const {
        throw grammar_error(text_, rule.place, "rule '" + rule.name + "': " + message);
    }

    bool may_be_empty(const GrammarItem &item) const {
        return item.min == 0 || (item.rule >= 0 && may_be_empty_[static_cast<std::size_t>(item.rule)]);
    }

    // Upstream takes the endless repetition of a rule with an empty alternative for left recursion. What may be empty
    // in other ways it repeats without harm.
    bool is_optional(int index) const {
        const auto &rule = rules_[static_cast<std::size_t>(index)];
        return std::any_of(rule.alternatives.begin(), rule.alternatives.end(), [&](const Sequence &sequence) {
            if (!rule.inlined) {
                return sequence.empty();
            }
            const GrammarItem &item = sequence.front();
            return item.min == 0 || (item.rule >= 0 && is_optional(item.rule));
        });
    }

    // A sequence is empty once every rule in it is; each such event is counted down once.
    void find_empty() {
        struct Waiting {
            std::size_t rule;
            std::size_t open; // items that are not known to be possibly empty
        };
        std::vector<Waiting> sequences;
        std::vector<std::vector<std::size_t>> waits_for(rules_.size());
        std::vector<std::size_t> found;
        auto settle = [&](const Waiting &waiting) {
            if (waiting.open == 0 && !may_be_empty_[waiting.rule]) {
                may_be_empty_[waiting.rule] = true;
                found.push_back(waiting.rule);
            }
        };
        for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
            for (const Sequence &sequence : rules_[rule].alternatives) {
                Waiting waiting{rule, 0};
                for (const GrammarItem &item : sequence) {
                    if (item.min > 0) {
                        ++waiting.open;
                        if (item.rule >= 0) {
                            waits_for[static_cast<std::size_t>(item.rule)].push_back(sequences.size());
                        }
                    }
                }
                sequences.push_back(waiting);
                settle(waiting);
            }
        }
        while (!found.empty()) {
            const auto rule = found.back();
            found.pop_back();
            for (const auto sequence : waits_for[rule]) {
                --sequences[sequence].open;
                settle(sequences[sequence]);
            }
        }
    }

    // The rules that this one can begin with.
    std::vector<std::size_t> beginnings(std::size_t rule) const {
        std::vector<std::size_t> found;
        for (const Sequence &sequence : rules_[rule].alternatives) {
            for (const GrammarItem &item : sequence) {
                if (item.rule >= 0) {
                    found.push_back(static_cast<std::size_t>(item.rule));
                }
                if (!may_be_empty(item)) {
                    break;
                }
            }
        }
        return found;
    }

    // Depth first along beginnings, without recursion; counts each rule after those that it begins with.
    void visit(std::size_t root) {
        struct Step {
            std::size_t rule;
            std::vector<std::size_t> next;
        };
        if (chained_[root] > 0) {
            return;
        }
        std::vector<Step> path;
        std::vector<bool> &open = open_;
        open.resize(rules_.size(), false);
        auto enter = [&](std::size_t rule) {
            open[rule] = true;
            path.push_back({rule, beginnings(rule)});
        };
        enter(root);
        while (!path.empty()) {
            if (path.back().next.empty()) {
                const auto rule = path.back().rule;
                path.pop_back();
                open[rule] = false;
                count(rule);
                continue;
            }
            const auto next = path.back().next.back();
            path.back().next.pop_back();
            if (open[next]) {
                fail(rules_[next], "it can begin with itself (left recursion), which llama.cpp cannot follow: put "
                                   "what it begins with first, and repeat the rest");
            }
            if (chained_[next] == 0) {
                enter(next);
            }
        }
    }

    void count(std::size_t rule) {
        double search = 1;
        double starts = 1;
        int chained = 1;
        for (const Sequence &sequence : rules_[rule].alternatives) {
            starts += largest_start(sequence, true);
            for (const GrammarItem &item : sequence) {
                if (item.rule >= 0) {
                    search += copies(item) * (search_[static_cast<std::size_t>(item.rule)] + 1);
                    const auto through = item.max == no_limit ? 1 : item.max - item.min; // a chain of its own
                    chained = std::max(chained,
                                       chained_[static_cast<std::size_t>(item.rule)] + 1 + static_cast<int>(through));
                }
                if (!may_be_empty(item)) {
                    break;
                }
            }
        }
        searches_ += search;
        if (search > most_search || searches_ > most_searches || starts > most_starts) {
            fail(rules_[rule], "there are too many ways to begin it");
        }
        if (chained > most_chained) {
            fail(rules_[rule], "too many rules begin with one another");
        }
        search_[rule] = search;
        starts_[rule] = starts;
        chained_[rule] = chained;
    }

    // How many copies of an item can be the first that is not empty.
    double copies(const GrammarItem &item) const {
        if (item.rule < 0 || !may_be_empty_[static_cast<std::size_t>(item.rule)]) {
            return 1;
        }
        return static_cast<double>(item.max == no_limit ? item.min + 2 : item.max + 1);
    }

    // The stacks that upstream makes where it stands before the sequence, or before any item of it.
    double largest_start(const Sequence &sequence, bool only_first = false) const {
        double starts = 1;
        double largest = 1;
        for (auto item = sequence.rbegin(); item != sequence.rend(); ++item) {
            const double own = item->rule < 0 ? 1 : starts_[static_cast<std::size_t>(item->rule)] + 1;
            const double chain = item->min == item->max ? 0 : 1; // the rule that upstream makes of a repetition
            starts = copies(*item) * own + chain + (may_be_empty(*item) ? starts : 0);
            largest = std::max(largest, starts);
        }
        return only_first ? starts : largest;
    }

    const std::string &text_;
    const std::vector<GrammarRule> &rules_;
    std::vector<bool> may_be_empty_;
    std::vector<bool> open_;
    std::vector<double> search_; // upstream's steps to look for left recursion from here
    std::vector<double> starts_; // upstream's stacks when it begins the rule
    std::vector<int> chained_;   // upstream's deepest call; 0: not counted yet
    double searches_ = 0;
};

} // namespace

void check_grammar(const std::string &text, const std::string &root, const llama_vocab *vocab) {
    if (text.size() > most_text) {
        throw GrammarError("the grammar has " + std::to_string(text.size()) + " bytes: at most " +
                           std::to_string(most_text) + " can be used");
    }
    const auto rules = read_grammar(text, vocab).rules;
    if (rules.empty()) {
        throw GrammarError("the grammar is empty: it needs at least a rule  " + root + " ::= ...");
    }
    for (const GrammarRule &rule : rules) {
        if (!rule.defined) {
            throw grammar_error(text, rule.place, "rule '" + rule.name + "' is not defined anywhere");
        }
    }
    if (std::none_of(rules.begin(), rules.end(), [&](const GrammarRule &rule) { return rule.name == root; })) {
        throw GrammarError("the grammar has no rule '" + root + "' to begin with");
    }
    Graph(text, rules).check();
}

} // namespace ipyllama
