// The words of a grammar's text: what stands between the rules' own structure.
#pragma once

#include <cstdint>
#include <string>

#include "llama.h"

namespace ipyllama {

class GrammarScanner {
  protected:
    GrammarScanner(const std::string &text, const llama_vocab *vocab) : text_(text), vocab_(vocab), at_(text.c_str()) {}

    std::size_t place_of(const char *place) const { return static_cast<std::size_t>(place - text_.c_str()); }
    [[noreturn]] void fail(const std::string &message, const char *place) const;
    void expect(bool ok, const char *what) const; // here

    void check_characters() const; // the whole text is UTF-8 without NUL
    void skip_space(bool newlines);
    bool at_digit() const;
    bool at_word() const;
    std::string read_name();
    std::uint64_t read_number();
    // These give the number of elements that llama.cpp stores.
    std::uint64_t read_literal();
    std::uint64_t read_class();
    void read_token(); // one

  private:
    std::uint32_t read_hex(int digits);
    std::uint32_t read_character();

    const std::string &text_;
    const llama_vocab *vocab_;

  protected:
    const char *at_; // where it reads; the text ends in NUL
};

} // namespace ipyllama
