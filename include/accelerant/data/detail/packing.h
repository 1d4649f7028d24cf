// Packs nested data (see tensor/nested.h) into one block of bytes, and unpacks it. For batches that
// one process makes for another; part of the loader.
//
//   at::Tensor bytes = pack(batch);       // uint8, on the CPU
//   auto same = unpack<Batch>(bytes);     // its tensors are views of the block and keep it alive
//
// The structure is packed with the data: lists may have any length and maps any keys. For a struct
// that names its fields, only those fields are packed, and it must be default-constructible.
// Unpacked tensors are dense, on the CPU, and without autograd history.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/tensor/detail/children.h"

namespace accelerant::data {

namespace detail {

template <class T>
concept Number = !std::is_const_v<T> && (std::is_arithmetic_v<T> || std::is_enum_v<T>);

}  // namespace detail

class PackWriter {
 public:
  template <detail::Number T>
  void number(T value) {
    append(&value, sizeof value);
  }
  void text(const std::string& value);
  // Copies the tensor to the CPU. Throws Error if it is not dense.
  void tensor(const at::Tensor& value);

  // Everything written so far.
  at::Tensor finish() const;

 private:
  void append(const void* data, std::size_t bytes);

  std::string structure_;
  std::vector<at::Tensor> tensors_;
};

// Reads what a PackWriter wrote, in the same order. Throws Error if the data is too short.
class PackReader {
 public:
  explicit PackReader(at::Tensor bytes);

  template <detail::Number T>
  T number() {
    T value{};
    take(&value, sizeof value);
    return value;
  }
  std::string text();
  at::Tensor tensor();

 private:
  void take(void* data, std::size_t bytes);

  at::Tensor bytes_;
  std::size_t place_ = 0;          // position in the structure
  std::size_t structure_end_ = 0;  // end of the structure
  std::size_t payload_ = 0;        // position of the next tensor's data
};

namespace detail {

using accelerant::detail::Children;
using accelerant::detail::Form;
using accelerant::detail::HasChildren;

template <class T>
struct Packs
    : std::bool_constant<Number<T> || std::same_as<T, std::string> || std::same_as<T, at::Tensor>> {
};
template <HasChildren T>
requires std::default_initializable<T>
struct Packs<T> : std::bool_constant<Children<T>::template all<Packs>> {
};
template <HasChildren T>
requires std::default_initializable<T> &&(Children<T>::form == Form::map) struct Packs<T>
    : std::bool_constant<Children<T>::template all<Packs> && Packs<typename T::key_type>::value> {
};

[[noreturn]] void refuse_to_pack_field();

template <class T>
void pack_into(PackWriter& writer, const T& value) {
  if constexpr (!Packs<T>::value) {
    refuse_to_pack_field();  // the fields of a struct are only known when they are visited
  } else if constexpr (Number<T>) {
    writer.number(value);
  } else if constexpr (std::same_as<T, std::string>) {
    writer.text(value);
  } else if constexpr (std::same_as<T, at::Tensor>) {
    writer.tensor(value);
  } else if constexpr (Children<T>::form == Form::map) {
    writer.number(static_cast<int64_t>(value.size()));
    for (const auto& [key, child] : value) {
      pack_into(writer, key);
      pack_into(writer, child);
    }
  } else {
    if constexpr (Children<T>::form == Form::list) {
      writer.number(static_cast<int64_t>(value.size()));
    } else if constexpr (Children<T>::form == Form::optional) {
      writer.number(value.has_value());
    }
    Children<T>::visit(value, [&](const auto& child) { pack_into(writer, child); });
  }
}

template <class T>
T unpack_from(PackReader& reader) {
  if constexpr (Number<T>) {
    return reader.number<T>();
  } else if constexpr (std::same_as<T, std::string>) {
    return reader.text();
  } else if constexpr (std::same_as<T, at::Tensor>) {
    return reader.tensor();
  } else {
    T value{};
    if constexpr (Children<T>::form == Form::list) {
      const auto size = reader.number<int64_t>();
      for (int64_t i = 0; i < size; ++i) {
        value.push_back(unpack_from<typename T::value_type>(reader));
      }
    } else if constexpr (Children<T>::form == Form::map) {
      const auto size = reader.number<int64_t>();
      for (int64_t i = 0; i < size; ++i) {
        auto key = unpack_from<typename T::key_type>(reader);
        value.emplace(std::move(key), unpack_from<typename T::mapped_type>(reader));
      }
    } else if constexpr (Children<T>::form == Form::optional) {
      if (reader.number<bool>()) value = unpack_from<typename T::value_type>(reader);
    } else {
      Children<T>::visit(value, [&]<class Child>(Child& child) {
        if constexpr (Packs<Child>::value) {
          child = unpack_from<Child>(reader);
        } else {
          refuse_to_pack_field();
        }
      });
    }
    return value;
  }
}

}  // namespace detail

// Types that can be packed.
template <class T>
concept Packable = detail::Packs<T>::value;

template <Packable T>
at::Tensor pack(const T& value) {
  PackWriter writer;
  detail::pack_into(writer, value);
  return writer.finish();
}

template <Packable T>
T unpack(at::Tensor bytes) {
  PackReader reader(std::move(bytes));
  return detail::unpack_from<T>(reader);
}

}  // namespace accelerant::data
