// The writer. safetensors_fuzz_test.py also checks that its files equal the reference's.
#include "accelerant/format/safetensors.h"
#include "core/atomic_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "format/file_bytes.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::format;
using Tensors = std::vector<TensorToWrite>;

class StringSink final : public ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override { text += as_text(bytes); }
  std::string text;
};

std::string written(Tensors tensors, const std::optional<Metadata>& metadata = {}) {
  const SafetensorsWriter writer(std::move(tensors), metadata);
  StringSink sink;
  writer.write(sink);
  EXPECT_EQ(sink.text.size(), writer.file_size());
  return sink.text;
}

std::string refusal(Tensors tensors, const std::optional<Metadata>& metadata = {}) {
  return whole_error_of([&] { SafetensorsWriter(std::move(tensors), metadata); });
}

const std::string zeros(1024, '\0');

TensorToWrite tensor(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
  const std::uint64_t size = byte_size(dtype, shape).value_or(0);
  return {
      .name = name, .dtype = dtype, .shape = std::move(shape), .data = as_bytes(zeros).first(size)};
}

TEST(SafetensorsWriterTest, NoTensors) {
  EXPECT_EQ(written({}), little_endian(8) + "{}      ");
  EXPECT_EQ(written({}, Metadata{}), little_endian(24) + "{\"__metadata__\":{}}     ");
  const std::string with_metadata = written({}, Metadata{{"framework", "pt"}});
  EXPECT_EQ(with_metadata, little_endian(40) + "{\"__metadata__\":{\"framework\":\"pt\"}}     ");
}

TEST(SafetensorsWriterTest, TheReferencesExamples) {
  EXPECT_EQ(written({tensor("attn.0", DType::f32, {1, 2, 3})}),
            little_endian(64) +
                "{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}}" +
                zeros.substr(0, 24));
  const auto forwards =
      written({tensor("test1", DType::i32, {2, 2}), tensor("test2", DType::f16, {2, 2})});
  const auto backwards =
      written({tensor("test2", DType::f16, {2, 2}), tensor("test1", DType::i32, {2, 2})});
  EXPECT_EQ(forwards, backwards);
  EXPECT_EQ(forwards.substr(0, 8), little_endian(0x80));
}

TEST(SafetensorsWriterTest, OrderOfTypesAndNames) {
  const std::vector<std::string> expected = {
      "U64", "I64", "F64",     "C64",         "F32",         "U32",     "I32",     "BF16",
      "F16", "U16", "I16",     "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2",
      "I8",  "U8",  "F6_E3M2", "F6_E2M3",     "F4",          "BOOL"};
  Tensors tensors;
  for (const DType dtype : all_dtypes()) {
    for (const char* const name : {"b", "a", "\xC3\xA9", "B"}) {
      tensors.push_back(tensor(name + std::string(dtype_name(dtype)), dtype, {8}));
    }
  }
  const std::vector<TensorInfo> layout = SafetensorsWriter(tensors).layout();
  std::vector<std::string> names;
  for (const TensorInfo& info : layout) {
    names.push_back(info.name);
    EXPECT_EQ(info.begin % std::max(8U, dtype_bits(info.dtype)) / 8, 0U) << info.name;
  }
  std::vector<std::string> expected_names;
  for (const std::string& dtype : expected) {
    for (const char* const name : {"B", "a", "b", "\xC3\xA9"})
      expected_names.push_back(name + dtype);
  }
  EXPECT_EQ(names, expected_names);

  const std::string bytes = written(std::move(tensors));
  EXPECT_EQ(parse(bytes).tensors(), layout);
}

TEST(SafetensorsWriterTest, Escapes) {
  const std::string name =
      std::string("\"\\/\b\f\n\r\t\x01\x1F\x7F\0", 12) + "\xC3\xA9\xF0\x9F\x98\x80";
  const std::string bytes = written({tensor(name, DType::u8, {0})}, Metadata{{name, name}});
  EXPECT_TRUE(contains(
      bytes, "{\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7F\\u0000\xC3\xA9\xF0\x9F\x98\x80\":"));
  EXPECT_NE(parse(bytes).find(name), nullptr);
  EXPECT_EQ(parse(bytes).metadata(), (Metadata{{name, name}}));
}

TEST(SafetensorsWriterTest, DataInPieces) {
  const std::string content = "abcdefgh";
  const auto in_pieces = [&](ByteSink& sink) {
    for (const std::size_t begin : {0U, 3U, 6U})
      sink.write(as_bytes(content).subspan(begin, begin == 6 ? 2 : 3));
  };
  const TensorToWrite whole = {
      .name = "a", .dtype = DType::f64, .shape = {}, .data = as_bytes(content)};
  const TensorToWrite pieces = {
      .name = "a", .dtype = DType::f64, .shape = {}, .produce = in_pieces};
  EXPECT_EQ(written({whole}), written({pieces}));
}

TEST(SafetensorsWriterTest, WrongNumberOfBytesProduced) {
  const auto produce = [](std::size_t count) {
    return TensorToWrite{
        .name = "a", .dtype = DType::u8, .shape = {4}, .produce = [count](ByteSink& sink) {
          for (std::size_t i = 0; i < count; ++i) sink.write(as_bytes("x"));
        }};
  };
  EXPECT_NO_THROW(written({produce(4)}));
  EXPECT_TRUE(contains(whole_error_of([&] { written({produce(3)}); }), "expected 4, got 3"));
  EXPECT_TRUE(
      contains(whole_error_of([&] { written({produce(5)}); }), "expected 4, got at least 5"));
}

TEST(SafetensorsWriterTest, RefusedBeforeAnythingIsWritten) {
  EXPECT_TRUE(contains(refusal({tensor("a", DType::u8, {1}), tensor("b", DType::u8, {1}),
                                tensor("a", DType::f32, {1})}),
                       "'a': the name occurs twice"));
  EXPECT_TRUE(contains(refusal({tensor("__metadata__", DType::u8, {1})}), "the name is reserved"));
  EXPECT_TRUE(contains(refusal({tensor("\xFF", DType::u8, {1})}), "not valid UTF-8"));
  EXPECT_TRUE(contains(refusal({}, Metadata{{"k", "\xC0\x80"}}), "metadata 'k'"));
  EXPECT_TRUE(contains(refusal({}, Metadata{{"\xFF", ""}}), "not valid UTF-8"));

  TensorToWrite short_data = tensor("a", DType::f32, {2});
  short_data.data = short_data.data.first(7);
  EXPECT_TRUE(contains(refusal({short_data}), "expected 8 bytes, got 7"));
  TensorToWrite both = tensor("a", DType::f32, {2});
  both.produce = [](ByteSink&) {};
  EXPECT_TRUE(contains(refusal({both}), "both data and a produce function"));

  EXPECT_TRUE(contains(refusal({tensor("a", DType::u8, {-1})}), "a dimension is negative"));
  EXPECT_TRUE(contains(refusal({tensor("a", DType::f4, {3})}), "do not fill whole bytes"));
  EXPECT_TRUE(
      contains(refusal({tensor("a", DType::u8, {std::int64_t{1} << 40, std::int64_t{1} << 40})}),
               "too many elements of type U8"));
  EXPECT_TRUE(contains(refusal({tensor("a", DType::u8, std::vector<std::int64_t>(65, 1))}),
                       "expected at most 64, got 65"));
  const auto large = [](const std::string& name) {
    return TensorToWrite{.name = name,
                         .dtype = DType::u8,
                         .shape = {(std::int64_t{1} << 61) - 1},
                         .produce = [](ByteSink&) {}};
  };
  Tensors many;
  for (int i = 0; i < 9; ++i) many.push_back(large(std::to_string(i)));
  EXPECT_TRUE(contains(refusal(std::move(many)), "too large for a file"));
}

TEST(SafetensorsWriterTest, HeaderTooLong) {
  // Everything but the name is 55 bytes long.
  const auto with_name = [](std::size_t length) {
    return Tensors{tensor(std::string(length, 'n'), DType::u8, {0})};
  };
  const std::size_t rest =
      std::string("{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}").size();
  EXPECT_NO_THROW(written(with_name(100'000'000 - rest)));
  EXPECT_TRUE(contains(refusal(with_name(100'000'001 - rest)), "got 100000008"));
}

TEST(SafetensorsWriterTest, SavesWholeOrNotAtAll) {
  const TempFolder folder;
  const std::string path = folder.path("x.safetensors");
  save_safetensors(path, {tensor("a", DType::f32, {2})});
  const std::string first = TempFolder::content_of(path);
  const SafetensorsFile mapped = SafetensorsFile::open(path);

  const TensorToWrite failing = {
      .name = "b", .dtype = DType::u8, .shape = {4}, .produce = [](ByteSink& sink) {
        sink.write(as_bytes("xy"));
        throw std::runtime_error("the device is gone");
      }};
  EXPECT_THROW(save_safetensors(path, {failing}), std::runtime_error);
  EXPECT_EQ(TempFolder::content_of(path), first);

  save_safetensors(path, {tensor("c", DType::f32, {200})}, Metadata{{"format", "pt"}});
  EXPECT_NE(SafetensorsFile::open(path).find("c"), nullptr);
  EXPECT_EQ(as_text(mapped.view("a")), zeros.substr(0, 8));
  run_in_shell("test \"$(ls " + folder.path() + ")\" = x.safetensors");  // nothing else is left
}

TEST(AtomicFileTest, Errors) {
  const TempFolder folder;
  EXPECT_TRUE(contains(whole_error_of([&] { AtomicFile(folder.path("no/x")); }), "No such file"));
  AtomicFile file(folder.path("x"));
  file.write(as_bytes("a"));
  file.commit();
  EXPECT_TRUE(contains(whole_error_of([&] { file.write(as_bytes("b")); }), "already committed"));
  EXPECT_TRUE(contains(whole_error_of([&] { file.commit(); }), "already committed"));
  EXPECT_EQ(TempFolder::content_of(folder.path("x")), "a");
  AtomicFile onto_folder(folder.path());
  EXPECT_TRUE(contains(whole_error_of([&] { onto_folder.commit(); }), "cannot be renamed"));
}

}  // namespace
