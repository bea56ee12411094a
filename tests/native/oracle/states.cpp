// State files as llama.cpp's own functions write and read them, in a context such as llama-completion makes.
//
//   states write KIND MODEL N_CTX SWA_FULL FILE N_GREEDY LOGITS < schedule   evaluates, writes FILE, goes on
//   states read KIND MODEL N_CTX SWA_FULL FILE N_GREEDY LOGITS < schedule    reads FILE, goes on
//
// KIND is session or sequence. `schedule` is four lines: where pieces end, their tokens (to read: both empty), tokens
// that FILE lists and that are not evaluated in it, tokens to go on with, one by one. Prints the tokens that FILE
// lists, and in a second line those of greedy sampling; LOGITS receives a row of n_vocab raw float32 for each.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Tokens = std::vector<llama_token>;

void check(bool ok, const char *what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

Tokens read_numbers() {
    std::string line;
    std::getline(std::cin, line);
    std::istringstream words(line);
    return {std::istream_iterator<int>(words), {}};
}

void print(const Tokens &tokens) {
    for (const llama_token token : tokens) {
        std::cout << token << ' ';
    }
    std::cout << '\n';
}

class Run {
  public:
    Run(const char *path, int n_ctx, bool swa_full)
        : model_(llama_model_load_from_file(path, llama_model_default_params()), llama_model_free),
          context_(nullptr, llama_free) {
        check(model_ != nullptr, "the model does not load");
        auto params = llama_context_default_params(); // one sequence, KV not unified, flash-attention as it likes
        params.n_ctx = static_cast<std::uint32_t>(n_ctx);
        params.n_batch = params.n_ubatch = 256;
        params.n_threads = params.n_threads_batch = 1;
        params.swa_full = swa_full;
        context_.reset(llama_init_from_model(model_.get(), params));
        check(context_ != nullptr, "there is no context");
    }

    void evaluate(Tokens piece) {
        const auto batch = llama_batch_get_one(piece.data(), static_cast<int>(piece.size()));
        check(llama_decode(context_.get(), batch) == 0, "llama_decode failed");
    }

    void save(const std::string &kind, const char *file, const Tokens &tokens) {
        const bool saved = kind == "session"
                               ? llama_state_save_file(context_.get(), file, tokens.data(), tokens.size())
                               : llama_state_seq_save_file(context_.get(), file, 0, tokens.data(), tokens.size()) > 0;
        check(saved, "the file was not written");
    }

    Tokens load(const std::string &kind, const char *file) {
        Tokens tokens(llama_n_ctx(context_.get()) + 1);
        std::size_t n = 0;
        const bool loaded =
            kind == "session"
                ? llama_state_load_file(context_.get(), file, tokens.data(), tokens.size(), &n)
                : llama_state_seq_load_file(context_.get(), file, 0, tokens.data(), tokens.size(), &n) > 0;
        check(loaded, "the file was not read");
        tokens.resize(n);
        return tokens;
    }

    llama_token likeliest(std::ostream &out) const {
        const auto n = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
        const float *logits = llama_get_logits_ith(context_.get(), -1);
        out.write(reinterpret_cast<const char *>(logits), static_cast<std::streamsize>(sizeof(float)) * n);
        return static_cast<llama_token>(std::max_element(logits, logits + n) - logits);
    }

  private:
    std::unique_ptr<llama_model, decltype(&llama_model_free)> model_;
    std::unique_ptr<llama_context, decltype(&llama_free)> context_;
};

void run(bool write, char **arguments) {
    const std::string kind = arguments[0];
    const char *file = arguments[4];
    const Tokens ends = read_numbers(), tokens = read_numbers(), pending = read_numbers(), more = read_numbers();
    Run run(arguments[1], std::atoi(arguments[2]), std::atoi(arguments[3]) != 0);
    Tokens listed = tokens;
    if (write) {
        int start = 0;
        for (const int end : ends) {
            run.evaluate({tokens.begin() + start, tokens.begin() + end});
            start = end;
        }
        listed.insert(listed.end(), pending.begin(), pending.end());
        run.save(kind, file, listed);
    } else {
        listed = run.load(kind, file);
    }
    for (const llama_token token : more) {
        run.evaluate({token});
    }
    std::ofstream out(arguments[6], std::ios::binary);
    Tokens greedy = {run.likeliest(out)};
    for (int i = 1; i < std::atoi(arguments[5]); ++i) {
        run.evaluate({greedy.back()});
        greedy.push_back(run.likeliest(out));
    }
    check(out.good(), "the logits cannot be written");
    print(listed);
    print(greedy);
}

} // namespace

int main(int argc, char **argv) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    const std::string mode = argc == 9 ? argv[1] : "";
    try {
        check(mode == "write" || mode == "read", "wrong arguments");
        run(mode == "write", argv + 2);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "states: %s\n", error.what());
        return 1;
    }
    return 0;
}
