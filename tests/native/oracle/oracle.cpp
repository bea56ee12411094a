// What llama.cpp itself computes, through llama.h alone: our engine must give the same tokens and the same bits.
//
//   oracle tokenize MODEL ADD_SPECIAL PARSE_SPECIAL < text        prints token ids
//   oracle run MODEL N_CTX N_THREADS N_GREEDY LOGITS < schedule   prints the token ids that greedy sampling gives
//
// `schedule` is two lines: the end of each piece, and the token ids. LOGITS receives raw float32, two rows of n_vocab:
// after the last token of the prompt, and after the last token evaluated.

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

using ModelPtr = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using ContextPtr = std::unique_ptr<llama_context, decltype(&llama_free)>;

constexpr std::uint32_t batch_size = 256;

void check(bool ok, const char *what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

ModelPtr load(const char *path, bool vocab_only) {
    auto params = llama_model_default_params();
    params.vocab_only = vocab_only;
    ModelPtr model(llama_model_load_from_file(path, params), llama_model_free);
    check(model != nullptr, "the model does not load");
    return model;
}

std::vector<int> read_numbers(std::istream &in) {
    std::string line;
    std::getline(in, line);
    std::istringstream words(line);
    return {std::istream_iterator<int>(words), {}};
}

void print(const std::vector<llama_token> &tokens) {
    for (const llama_token token : tokens) {
        std::cout << token << ' ';
    }
    std::cout << '\n';
}

class Run {
  public:
    Run(const char *path, int n_ctx, int n_threads) : model_(load(path, false)), context_(nullptr, llama_free) {
        auto params = llama_context_default_params();
        params.n_ctx = static_cast<std::uint32_t>(n_ctx);
        params.n_batch = params.n_ubatch = batch_size;
        params.n_threads = params.n_threads_batch = n_threads;
        params.kv_unified = true;
        params.swa_full = true;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED; // as `ipyllama.load` does on a CPU
        context_.reset(llama_init_from_model(model_.get(), params));
        check(context_ != nullptr, "there is no context");
    }

    void evaluate(std::vector<llama_token> piece) { // llama_batch_get_one asks for the logits of the last token
        const auto batch = llama_batch_get_one(piece.data(), static_cast<int>(piece.size()));
        check(llama_decode(context_.get(), batch) == 0, "llama_decode failed");
    }

    llama_token likeliest() const {
        const float *logits = llama_get_logits_ith(context_.get(), -1);
        return static_cast<llama_token>(std::max_element(logits, logits + n_vocab()) - logits);
    }

    bool ends(llama_token token) const { return llama_vocab_is_eog(vocab(), token); }

    void write_logits(std::ostream &out) const {
        const float *logits = llama_get_logits_ith(context_.get(), -1);
        out.write(reinterpret_cast<const char *>(logits), static_cast<std::streamsize>(n_vocab() * sizeof(float)));
    }

  private:
    const llama_vocab *vocab() const { return llama_model_get_vocab(model_.get()); }
    std::size_t n_vocab() const { return static_cast<std::size_t>(llama_vocab_n_tokens(vocab())); }

    ModelPtr model_;
    ContextPtr context_;
};

void run(char **arguments) {
    const std::vector<int> ends = read_numbers(std::cin), tokens = read_numbers(std::cin);
    Run run(arguments[0], std::atoi(arguments[1]), std::atoi(arguments[2]));
    const auto n_greedy = static_cast<std::size_t>(std::atoi(arguments[3]));
    std::ofstream out(arguments[4], std::ios::binary);
    int start = 0;
    for (const int end : ends) {
        run.evaluate({tokens.begin() + start, tokens.begin() + end});
        start = end;
    }
    run.write_logits(out);
    std::vector<llama_token> greedy = {run.likeliest()};
    while (greedy.size() < n_greedy && !run.ends(greedy.back())) {
        run.evaluate({greedy.back()});
        greedy.push_back(run.likeliest());
    }
    run.write_logits(out);
    check(out.good(), "the logits cannot be written");
    print(greedy);
}

void tokenize(char **arguments) {
    const ModelPtr model = load(arguments[0], true);
    const std::string text(std::istreambuf_iterator<char>(std::cin), {});
    std::vector<llama_token> tokens(text.size() + 16);
    const int n =
        llama_tokenize(llama_model_get_vocab(model.get()), text.data(), static_cast<int>(text.size()), tokens.data(),
                       static_cast<int>(tokens.size()), std::atoi(arguments[1]) != 0, std::atoi(arguments[2]) != 0);
    check(n >= 0, "llama_tokenize failed");
    tokens.resize(static_cast<std::size_t>(n));
    print(tokens);
}

} // namespace

int main(int argc, char **argv) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    const std::string mode = argc > 1 ? argv[1] : "";
    try {
        if (mode == "tokenize" && argc == 5) {
            tokenize(argv + 2);
        } else if (mode == "run" && argc == 7) {
            run(argv + 2);
        } else {
            throw std::runtime_error("wrong arguments");
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "oracle: %s\n", error.what());
        return 1;
    }
    return 0;
}
