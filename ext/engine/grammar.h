// GBNF grammars are read here before llama.cpp reads them: it would write its complaint to stderr, follow some left
// recursion without end, and let some repetitions fill the memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"

#include "error.h"

namespace ipyllama {

class GrammarError : public Error {
  public:
    GrammarError(const std::string &message, int line = 0, int column = 0)
        : Error(ErrorKind::bad_grammar, message), line_(line), column_(column) {}
    // Of the place in the text, from 1, columns in characters; 0 if the error has no place.
    int line() const noexcept { return line_; }
    int column() const noexcept { return column_; }

  private:
    int line_;
    int column_;
};

constexpr std::uint64_t no_limit = UINT64_MAX;

// One element of a sequence: characters or a token (rule < 0), or a reference to a rule, repeated min to max times.
struct GrammarItem {
    int rule = -1;
    std::uint64_t size = 1; // elements that llama.cpp stores for one copy
    std::uint64_t min = 1;
    std::uint64_t max = 1; // no_limit: any number
    std::size_t place = 0; // in the text
};

struct GrammarRule {
    std::string name;      // of the rule that a group belongs to, for a group
    std::size_t place = 0; // in the text: the definition, or the first reference where there is none
    bool defined = false;
    bool inlined = false; // a repetition that is repeated: a rule here, upstream just more elements
    std::vector<std::vector<GrammarItem>> alternatives;
};

struct GrammarRules {
    std::vector<GrammarRule> rules;
    std::uint64_t n_elements = 0; // that llama.cpp stores for all of them
};

// The error at a byte offset of the text.
GrammarError grammar_error(const std::string &text, std::size_t place, const std::string &message);

// Reads a grammar by llama.cpp's rules. `vocab` turns tokens written as <text> into ids. Throws GrammarError.
GrammarRules read_grammar(const std::string &text, const llama_vocab *vocab);

// Refuses what llama.cpp could not follow: undefined rules, left recursion, sizes beyond all use. Throws GrammarError.
void check_grammar(const std::string &text, const std::string &root, const llama_vocab *vocab);

} // namespace ipyllama
