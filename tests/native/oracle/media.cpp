// What llama.cpp itself makes of a prompt with images and sounds, through its own helper: our evaluation must agree.
//
//   media MODEL PROJECTOR N_BATCH LOGITS TEXT [image WIDTH HEIGHT FILE | audio N_SAMPLES FILE] ...
//
// The files hold raw uint8 RGB or float32. LOGITS receives raw float32: the logits after the last token of TEXT.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"
#include "mtmd-helper.h"
#include "mtmd.h"

// The helper hashes the files that it opens with this, from a library that is not installed. It opens none here.
std::string hash_sha256_hex(const void * /*data*/, std::size_t /*size*/) {
    throw std::logic_error("no files are opened");
}

namespace {

void check(bool ok, const char *what) {
    if (!ok) {
        throw std::runtime_error(what);
    }
}

std::vector<char> read(const char *path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<mtmd::bitmap_ptr> read_media(char **at, char **end) {
    std::vector<mtmd::bitmap_ptr> media;
    while (at < end) {
        const bool is_image = std::strcmp(at[0], "image") == 0;
        const auto bytes = read(is_image ? at[3] : at[2]);
        const auto size = static_cast<std::uint32_t>(std::atoi(at[1]));
        if (is_image) {
            const auto *rgb = reinterpret_cast<const unsigned char *>(bytes.data());
            media.emplace_back(mtmd_bitmap_init(size, static_cast<std::uint32_t>(std::atoi(at[2])), rgb));
        } else {
            media.emplace_back(mtmd_bitmap_init_from_audio(size, reinterpret_cast<const float *>(bytes.data())));
        }
        at += is_image ? 4 : 3;
    }
    return media;
}

void run(char **arguments, char **end) {
    const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
        llama_model_load_from_file(arguments[0], llama_model_default_params()), llama_model_free);
    check(model != nullptr, "the model does not load");
    const int n_batch = std::atoi(arguments[2]);
    auto params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(n_batch);
    params.n_threads = params.n_threads_batch = 1;
    params.kv_unified = true;
    const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model.get(), params),
                                                                        llama_free);
    check(context != nullptr, "there is no context");
    auto options = mtmd_context_params_default();
    options.n_threads = 1;
    const mtmd::context_ptr projector(mtmd_init_from_file(arguments[1], model.get(), options));
    check(projector != nullptr, "the projector does not load");

    const auto media = read_media(arguments + 5, end);
    std::vector<const mtmd_bitmap *> bitmaps;
    for (const auto &medium : media) {
        bitmaps.push_back(medium.get());
    }
    const mtmd_input_text text = {arguments[4], std::strlen(arguments[4]), true, true};
    const mtmd::input_chunks chunks(mtmd_input_chunks_init());
    check(mtmd_tokenize(projector.get(), chunks.ptr.get(), &text, bitmaps.data(), bitmaps.size()) == 0,
          "mtmd_tokenize failed");
    llama_pos n_past = 0;
    check(mtmd_helper_eval_chunks(projector.get(), context.get(), chunks.ptr.get(), 0, 0, n_batch, true, &n_past) == 0,
          "mtmd_helper_eval_chunks failed");
    const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));
    std::ofstream out(arguments[3], std::ios::binary);
    out.write(reinterpret_cast<const char *>(llama_get_logits_ith(context.get(), -1)),
              static_cast<std::streamsize>(n_vocab * sizeof(float)));
    check(out.good(), "the logits cannot be written");
    std::printf("%d\n", n_past);
}

} // namespace

int main(int argc, char **argv) {
    const auto silent = [](ggml_log_level, const char *, void *) {};
    llama_log_set(silent, nullptr);
    mtmd_helper_log_set(silent, nullptr);
    try {
        check(argc >= 6, "wrong arguments");
        run(argv + 1, argv + argc);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "media: %s\n", error.what());
        return 1;
    }
    return 0;
}
