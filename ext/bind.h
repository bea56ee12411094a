// What the binding files share. Each binds one subject; module.cpp only calls them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/buffer.h"
#include "engine/error.h"
#include "gil.h"

namespace nb = nanobind;
using namespace nb::literals;

using release_gil = nb::call_guard<ReleasedGil>;

// Moves a vector into a NumPy array that owns it: no second copy.
template <typename T> nb::ndarray<nb::numpy, T, nb::ndim<1>> to_array(std::vector<T> values) {
    auto owner = std::make_unique<std::vector<T>>(std::move(values));
    std::vector<T> *data = owner.get();
    nb::capsule capsule(owner.release(), [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
    return {data->data(), {data->size()}, capsule};
}

// State goes in and out as bytes: any contiguous buffer is read or written in place.
using ConstBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteArray = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

inline ByteArray to_array(ipyllama::Buffer buffer) {
    const std::size_t size = buffer.size();
    std::uint8_t *data = buffer.release().release();
    nb::capsule owner(data, [](void *p) noexcept { delete[] static_cast<std::uint8_t *>(p); });
    return {data, {size}, owner};
}

inline nb::bytes to_bytes(const std::string &text) {
    return nb::bytes(text.data(), text.size());
}

// Upstream promises no encoding: what is not UTF-8 becomes U+FFFD.
inline nb::str to_text(const std::string &text) {
    PyObject *decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (decoded == nullptr) {
        throw nb::python_error();
    }
    return nb::steal<nb::str>(decoded);
}

// `with` statements: __enter__ gives the object, __exit__ closes it.
template <typename Class> void bind_close(Class &cls) {
    using T = typename Class::Type;
    cls.def("close", &T::close, release_gil(), "Free what this object holds. Safe to call twice and from any thread.")
        .def_prop_ro("closed", &T::closed, "True after close().")
        .def(
            "__enter__",
            [](T &self) -> T & {
                if (self.closed()) {
                    throw ipyllama::Error(ipyllama::ErrorKind::closed, "this object is closed");
                }
                return self;
            },
            nb::rv_policy::none)
        .def(
            "__exit__",
            [](T &self, nb::args) {
                ReleasedGil release;
                self.close();
            },
            nb::sig("def __exit__(self, *exception: object) -> None"));
}

void init_errors(nb::module_ &m);
void init_backend(nb::module_ &m);
void init_model(nb::module_ &m);
void init_context(nb::module_ &m);
void init_sequence(nb::module_ &m);
void init_sampler(nb::module_ &m);
void init_adapter(nb::module_ &m);
void init_multimodal(nb::module_ &m);
void init_embedding(nb::module_ &m);
