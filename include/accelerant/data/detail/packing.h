// Nested data (see tensor/nested.h) as one block of bytes, and back. For batches that one process makes
// for another; a part of the loader.
//
//   at::Tensor bytes = pack(batch);       // uint8, on the CPU
//   auto same = unpack<Batch>(bytes);     // its tensors are views of the block, which they keep alive
//
// Structure travels with the data: lists may have any length and maps any keys. Of a struct that names
// its fields those fields travel and nothing else, and it must be default-constructible. Tensors arrive
// on the CPU, dense, without autograd history.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerant/tensor/detail/nesting.h"

namespace accelerant::data {

class PackWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void number(T value) { append(&value, sizeof value); }
  void text(const std::string& value);
  // Brings it to the CPU. Throws Error if it is not dense.
  void tensor(const at::Tensor& value);

  // Everything written so far.
  at::Tensor finish() const;

 private:
  void append(const void* data, std::size_t bytes);

  std::string structure_;
  std::vector<at::Tensor> tensors_;
};

// Reads what a PackWriter wrote, in the same order. Throws Error if there is less than that.
class PackReader {
 public:
  explicit PackReader(at::Tensor bytes);

  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> T number() {
    T value{};
    take(&value, sizeof value);
    return value;
  }
  std::string text();
  at::Tensor tensor();

 private:
  void take(void* data, std::size_t bytes);

  at::Tensor bytes_;
  std::size_t place_ = 0;          // in the structure
  std::size_t structure_end_ = 0;  // and where that ends
  std::size_t payload_ = 0;        // of the next tensor
};

namespace detail {

template <class T>
struct Packing {
  static constexpr bool known = false;
};

template <class T>
requires std::is_arithmetic_v<T> || std::is_enum_v<T>
struct Packing<T> {
  static constexpr bool known = true;
  static void write(PackWriter& writer, T value) { writer.number(value); }
  static T read(PackReader& reader) { return reader.number<T>(); }
};

template <>
struct Packing<std::string> {
  static constexpr bool known = true;
  static void write(PackWriter& writer, const std::string& value) { writer.text(value); }
  static std::string read(PackReader& reader) { return reader.text(); }
};

template <>
struct Packing<at::Tensor> {
  static constexpr bool known = true;
  static void write(PackWriter& writer, const at::Tensor& value) { writer.tensor(value); }
  static at::Tensor read(PackReader& reader) { return reader.tensor(); }
};

template <class T, class Allocator>
struct Packing<std::vector<T, Allocator>> {
  static constexpr bool known = Packing<T>::known;
  static void write(PackWriter& writer, const std::vector<T, Allocator>& values) {
    writer.number(static_cast<int64_t>(values.size()));
    for (const T& value : values) Packing<T>::write(writer, value);
  }
  static std::vector<T, Allocator> read(PackReader& reader) {
    std::vector<T, Allocator> values;
    const auto size = reader.number<int64_t>();
    for (int64_t i = 0; i < size; ++i) values.push_back(Packing<T>::read(reader));
    return values;
  }
};

template <class T, std::size_t n>
struct Packing<std::array<T, n>> {
  static constexpr bool known = Packing<T>::known;
  static void write(PackWriter& writer, const std::array<T, n>& values) {
    for (const T& value : values) Packing<T>::write(writer, value);
  }
  static std::array<T, n> read(PackReader& reader) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return std::array<T, n>{
          ((void)i, Packing<T>::read(reader))...};  // braces: from left to right
    }
    (std::make_index_sequence<n>{});
  }
};

template <class... Ts>
struct Packing<std::tuple<Ts...>> {
  static constexpr bool known = (Packing<Ts>::known && ...);
  static void write(PackWriter& writer, const std::tuple<Ts...>& values) {
    std::apply([&](const Ts&... value) { (Packing<Ts>::write(writer, value), ...); }, values);
  }
  static std::tuple<Ts...> read(PackReader& reader) {
    return std::tuple<Ts...>{Packing<Ts>::read(reader)...};
  }
};

template <class A, class B>
struct Packing<std::pair<A, B>> {
  static constexpr bool known = Packing<A>::known && Packing<B>::known;
  static void write(PackWriter& writer, const std::pair<A, B>& value) {
    Packing<A>::write(writer, value.first);
    Packing<B>::write(writer, value.second);
  }
  static std::pair<A, B> read(PackReader& reader) {
    return std::pair<A, B>{Packing<A>::read(reader), Packing<B>::read(reader)};
  }
};

template <class T>
struct Packing<std::optional<T>> {
  static constexpr bool known = Packing<T>::known;
  static void write(PackWriter& writer, const std::optional<T>& value) {
    writer.number(value.has_value());
    if (value) Packing<T>::write(writer, *value);
  }
  static std::optional<T> read(PackReader& reader) {
    if (!reader.number<bool>()) return std::nullopt;
    return Packing<T>::read(reader);
  }
};

template <class Map>
struct PackingOfMap {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static constexpr bool known = Packing<Key>::known && Packing<Value>::known;
  static void write(PackWriter& writer, const Map& values) {
    writer.number(static_cast<int64_t>(values.size()));
    for (const auto& [key, value] : values) {
      Packing<Key>::write(writer, key);
      Packing<Value>::write(writer, value);
    }
  }
  static Map read(PackReader& reader) {
    Map values;
    const auto size = reader.number<int64_t>();
    for (int64_t i = 0; i < size; ++i) {
      Key key = Packing<Key>::read(reader);
      values.emplace(std::move(key), Packing<Value>::read(reader));
    }
    return values;
  }
};

template <class... Ts>
struct Packing<std::map<Ts...>> : PackingOfMap<std::map<Ts...>> {};

template <class... Ts>
struct Packing<std::unordered_map<Ts...>> : PackingOfMap<std::unordered_map<Ts...>> {};

[[noreturn]] void refuse_to_pack_field();

template <accelerant::detail::HasFields T>
requires std::default_initializable<T>
struct Packing<T> {
  static constexpr bool known = true;
  static void write(PackWriter& writer, const T& value) {
    NestedFields<T>::visit(value, [&]<class Field>(const Field& field) {
      // Which fields there are is only known when they are visited.
      if constexpr (Packing<Field>::known) {
        Packing<Field>::write(writer, field);
      } else {
        refuse_to_pack_field();
      }
    });
  }
  static T read(PackReader& reader) {
    T value{};
    NestedFields<T>::visit(value, [&]<class Field>(Field& field) {
      if constexpr (Packing<Field>::known) {
        field = Packing<Field>::read(reader);
      } else {
        refuse_to_pack_field();
      }
    });
    return value;
  }
};

}  // namespace detail

// Data that can be packed.
template <class T>
concept Packable = detail::Packing<T>::known;

template <Packable T>
at::Tensor pack(const T& value) {
  PackWriter writer;
  detail::Packing<T>::write(writer, value);
  return writer.finish();
}

template <Packable T>
T unpack(at::Tensor bytes) {
  PackReader reader(std::move(bytes));
  return detail::Packing<T>::read(reader);
}

}  // namespace accelerant::data
