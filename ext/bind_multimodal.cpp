#include "bind.h"
#include "engine/media_step.h"
#include "engine/multimodal.h"

#include <variant>

using ipyllama::Chunk;
using ipyllama::Model;
using ipyllama::Multimodal;
using ipyllama::MultimodalOptions;
using ipyllama::Sequence;

namespace {

using Pixels = nb::ndarray<const std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;
using Samples = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The arrays of a call, kept while their data is in use. Strided ones are copied; types are never converted.
class Media {
  public:
    explicit Media(const nb::sequence &media) {
        for (const nb::handle item : media) {
            nb::ndarray<nb::ro> array;
            const bool is_array = nb::try_cast(item, array, false);
            // Sizes come first: the casts below may copy.
            if (is_array && array.dtype() == nb::dtype<std::uint8_t>() && array.ndim() == 3 && array.shape(2) == 3) {
                ipyllama::check_size(ipyllama::Image{nullptr, array.shape(1), array.shape(0)});
                const auto &pixels = std::get<Pixels>(owners_.emplace_back(nb::cast<Pixels>(item)));
                views_.emplace_back(ipyllama::Image{pixels.data(), pixels.shape(1), pixels.shape(0)});
            } else if (is_array && array.dtype() == nb::dtype<float>() && array.ndim() == 1) {
                ipyllama::check_size(ipyllama::Audio{nullptr, array.shape(0)});
                const auto &samples = std::get<Samples>(owners_.emplace_back(nb::cast<Samples>(item)));
                views_.emplace_back(ipyllama::Audio{samples.data(), samples.shape(0)});
            } else {
                ipyllama::require(false, "medium " + std::to_string(views_.size()) +
                                             " is neither an image, a uint8 array of shape (height, width, 3), nor a "
                                             "sound, a float32 array of shape (n_samples,)");
            }
        }
    }
    const std::vector<ipyllama::Medium> &views() const { return views_; }

  private:
    std::vector<std::variant<Pixels, Samples>> owners_;
    std::vector<ipyllama::Medium> views_;
};

std::shared_ptr<Multimodal> load(const Model &model, const std::string &path, int n_threads, bool use_gpu,
                                 int image_min_tokens, int image_max_tokens) {
    return Multimodal::load(model, path, MultimodalOptions{n_threads, use_gpu, image_min_tokens, image_max_tokens});
}

std::vector<Chunk> tokenize(const Multimodal &self, const std::string &text, const nb::sequence &media,
                            bool add_special, bool parse_special) {
    const Media held(media);
    const ReleasedGil release;
    return self.tokenize(text, held.views(), add_special, parse_special);
}

nb::object encode(const Multimodal &self, const Chunk &chunk) {
    std::vector<float> rows;
    {
        const ReleasedGil release;
        rows = self.encode(chunk);
    }
    return nb::cast(to_array(std::move(rows))).attr("reshape")(chunk.n_tokens(), -1);
}

using Embeddings = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void evaluate(const Multimodal &self, const Sequence &sequence, const Chunk &chunk, const Embeddings &embeddings) {
    const ipyllama::Rows rows{embeddings.data(), embeddings.shape(0), embeddings.shape(1)};
    const ReleasedGil release;
    ipyllama::evaluate(self, sequence, chunk, rows);
}

const char *kind(const Chunk &self) {
    static constexpr const char *names[] = {"text", "image", "audio"};
    return names[self.type()];
}

} // namespace

void init_multimodal(nb::module_ &m) {
    nb::class_<Chunk>(m, "Chunk", "A piece of a prompt: text, or what is encoded at once of an image or a sound.")
        .def_prop_ro("kind", &kind, nb::sig("def kind(self) -> typing.Literal['text', 'image', 'audio']"),
                     "text, image or audio.")
        .def_prop_ro("tokens", &Chunk::tokens, "Token ids of text; empty for media.")
        .def_prop_ro("n_tokens", &Chunk::n_tokens, "Cells of KV memory that it takes.")
        .def_prop_ro("n_positions", &Chunk::n_positions,
                     "Positions that it takes: fewer than tokens where those of an image are two-dimensional (M-RoPE).")
        .def_prop_ro(
            "id", [](const Chunk &self) { return self.id().empty() ? nb::none() : nb::object(to_text(self.id())); },
            nb::sig("def id(self) -> str | None"),
            "Of media: the SHA-256 of the array (kind, shape and bytes), and which part of it this is.")
        .def("__repr__", [](const Chunk &self) {
            return "<Chunk " + std::string(kind(self)) + ", " + std::to_string(self.n_tokens()) + " tokens>";
        });

    nb::class_<Multimodal> multimodal(m, "Multimodal",
                                      "A projector (mmproj) for a model, which it keeps alive: turns images and sounds "
                                      "into embeddings that the model reads like tokens.");
    bind_close(multimodal);
    multimodal
        .def_static("load", &load, "model"_a, "path"_a, nb::kw_only(), "n_threads"_a = 1, "use_gpu"_a = true,
                    "image_min_tokens"_a = 0, "image_max_tokens"_a = 0, release_gil(),
                    "Load a projector from a GGUF file. Raises BadModelFile if it is damaged, is no projector or was "
                    "made for another model. `image_min_tokens` and `image_max_tokens` bound the tokens of an image "
                    "where its size decides them; 0 leaves it to the file.")
        .def_prop_ro("supports_vision", &Multimodal::supports_vision, "True if it takes images.")
        .def_prop_ro("supports_audio", &Multimodal::supports_audio, "True if it takes sounds.")
        .def_prop_ro("audio_sample_rate", &Multimodal::audio_sample_rate, "Of sounds, in Hz; 0 if it takes none.")
        .def_prop_ro("marker", &Multimodal::marker, "What stands for an image or a sound in a text.")
        .def_prop_ro("n_embd", &Multimodal::n_embd, "Width of an embedding.")
        .def(
            "tokenize", &tokenize, "text"_a, "media"_a, "add_special"_a = true, "parse_special"_a = true,
            nb::sig("def tokenize(self, text: str, media: collections.abc.Sequence[numpy.typing.NDArray[numpy.uint8] | "
                    "numpy.typing.NDArray[numpy.float32]], add_special: bool = True, parse_special: bool = True) -> "
                    "list[Chunk]"),
            "Cut a text and its media into chunks. The n-th marker in `text` stands for the n-th of `media`: images "
            "are uint8 arrays of shape (height, width, 3), RGB; sounds are float32 arrays of shape (n_samples,), "
            "mono at audio_sample_rate, -1 to 1. Raises BadArgument if markers and media do not match.")
        .def("encode", &encode, "chunk"_a,
             nb::sig("def encode(self, chunk: Chunk) -> numpy.typing.NDArray[numpy.float32]"),
             "The embeddings of an image or a sound: float32, shape (n_tokens, n_embd). The array owns its data. One "
             "step, which the abort flag does not end.")
        .def("evaluate", &evaluate, "sequence"_a, "chunk"_a, "embeddings"_a,
             "Read an image or a sound into a sequence, after what it holds; `embeddings` are what encode() gave for "
             "`chunk`. Steps of n_batch tokens, which the abort flag ends. Token ids in the ledger are -1. All or "
             "nothing: after Aborted or DecodeError the sequence is as it was, or empty where it cannot be cut. "
             "Raises BadArgument if tokens that see each other both ways are more than n_batch or n_ubatch.");
}
