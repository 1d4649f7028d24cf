// Files that must be accepted, as the reference implementation does.
#include <accelerant/format/safetensors.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "format/file_bytes.h"

namespace {

using namespace accelerant::format;
using Shape = std::vector<std::int64_t>;
using Names = std::vector<std::string_view>;

const std::string one_u8 = entry("a", "U8", "1", "0,1");

TEST(SafetensorsAcceptTest, EmptyHeader) {
  for (const std::string header : {"{}", "{ }", "{}   "}) {
    const std::string bytes = file_with(header);
    const SafetensorsFile file = parse(bytes);
    EXPECT_TRUE(file.tensors().empty());
    EXPECT_FALSE(file.has_metadata());
    EXPECT_TRUE(file.metadata().empty());
  }
}

TEST(SafetensorsAcceptTest, WhitespaceAroundTheHeader) {
  for (const std::string header : {"  {}", "{} \n\t\r", "\r\n\t {} ", "\n{\n}\n"}) {
    const std::string bytes = file_with(header);
    EXPECT_NO_THROW(parse(bytes)) << header;
  }
  const std::string spread = file_with(
      "\n{ \"a\" :\t{ \"dtype\" : \"U8\" ,\r\"shape\" : [ 1 , 1 ] , \"data_offsets\" : [ 0 , 1 ] } "
      "}\n",
      1);
  EXPECT_EQ(parse(spread).info("a").shape, (Shape{1, 1}));
}

TEST(SafetensorsAcceptTest, TheLongestHeader) {
  std::string header = "{" + one_u8 + "}";
  header.resize(100'000'000, ' ');
  const std::string bytes = file_with(header, 1);
  EXPECT_EQ(parse(bytes).names(), Names{"a"});
}

TEST(SafetensorsAcceptTest, MetadataInAllForms) {
  const auto metadata_of = [](const std::string& header, std::size_t data_size) {
    const std::string bytes = file_with(header, data_size);
    const SafetensorsFile file = parse(bytes);
    return std::pair(file.has_metadata(), file.metadata());
  };
  EXPECT_EQ(metadata_of("{" + one_u8 + "}", 1), std::pair(false, Metadata{}));
  EXPECT_EQ(metadata_of("{\"__metadata__\":{}}", 0), std::pair(true, Metadata{}));
  EXPECT_EQ(metadata_of("{\"__metadata__\":null}", 0), std::pair(false, Metadata{}));
  EXPECT_EQ(metadata_of("{" + one_u8 + ",\"__metadata__\":{\"format\":\"pt\"}}", 1),
            std::pair(true, Metadata{{"format", "pt"}}));
  EXPECT_EQ(metadata_of("{\"__metadata__\":{\"b\":\"\\u00e9\",\"a\":\"\",\"\":\"x\"}}", 0),
            std::pair(true, (Metadata{{"", "x"}, {"a", ""}, {"b", "\xC3\xA9"}})));
  EXPECT_EQ(metadata_of("{\"__meta\\u0064ata__\":{\"a\":\"b\"}}", 0),
            std::pair(true, Metadata{{"a", "b"}}));
}

TEST(SafetensorsAcceptTest, Scalar) {
  const std::string bytes = file_with("{" + entry("a", "F32", "", "0,4") + "}", 4);
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.info("a"), (TensorInfo{.name = "a", .dtype = DType::f32, .begin = 0, .end = 4}));
  EXPECT_EQ(as_text(file.view("a")), "abcd");
}

TEST(SafetensorsAcceptTest, ZeroSizes) {
  const std::string alone = file_with("{" + entry("a", "F32", "2,0", "0,0") + "}");
  EXPECT_EQ(parse(alone).info("a").shape, (Shape{2, 0}));
  EXPECT_TRUE(parse(alone).view("a").empty());

  const std::string two =
      file_with("{" + entry("a", "F32", "0", "0,0") + "," + entry("b", "I8", "0,5", "0,0") + "}");
  EXPECT_EQ(parse(two).names(), (Names{"a", "b"}));

  const std::string between =
      file_with("{" + entry("a", "U8", "2", "0,2") + "," + entry("z", "U8", "0", "2,2") + "," +
                    entry("b", "U8", "1", "2,3") + "}",
                3);
  EXPECT_EQ(parse(between).names(), (Names{"a", "z", "b"}));
}

TEST(SafetensorsAcceptTest, HeaderOrderIsFree) {
  const std::string bytes =
      file_with("{" + entry("a", "U8", "3", "4,7") + "," + entry("b", "U8", "4", "0,4") + "," +
                    entry("z", "U8", "0", "4,4") + "}",
                7);
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.names(), (Names{"b", "z", "a"}));
  EXPECT_EQ(as_text(file.view("a")), "efg");
  EXPECT_EQ(as_text(file.view("b")), "abcd");
}

TEST(SafetensorsAcceptTest, UnalignedData) {
  const float value = 1.5F;
  std::string data = "x";
  data.append(reinterpret_cast<const char*>(&value), sizeof value);
  const std::string bytes =
      file_with("{" + one_u8 + "," + entry("f", "F32", "1", "1,5") + "}", data);
  const SafetensorsFile file = parse(bytes);
  float read = 0;
  file.read("f", std::as_writable_bytes(std::span(&read, 1)));
  EXPECT_EQ(read, value);
}

TEST(SafetensorsAcceptTest, UnknownFieldsInAnEntry) {
  const auto with_extra = [](const std::string& value) {
    return file_with("{\"a\":{\"dtype\":\"U8\",\"extra\":" + value +
                         ",\"shape\":[1],\"extra\":1,\"data_offsets\":[0,1]}}",
                     1);
  };
  const std::string deepest = std::string(125, '[') + std::string(125, ']');
  for (const std::string& value :
       {std::string("null"), std::string("true"), std::string("false"), std::string("-0"),
        std::string("-1.5e+3"), std::string("1e-999"), std::string("0e999"), std::string("1E5"),
        std::string("\"\\ud83d\\ude00 \x7F\""), std::string("{\"a\":1,\"a\":[{},[],\"\"]}"),
        std::string(308, '9'), deepest}) {
    const std::string bytes = with_extra(value);
    EXPECT_NO_THROW(parse(bytes)) << value;
  }
}

TEST(SafetensorsAcceptTest, SubByteTypes) {
  const std::string bytes =
      file_with("{" + entry("a", "F4", "4", "0,2") + "," + entry("b", "F6_E2M3", "2,2", "2,5") +
                    "," + entry("c", "F6_E3M2", "4", "5,8") + "}",
                8);
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(as_text(file.view("a")), "ab");
  EXPECT_EQ(as_text(file.view("b")), "cde");
  EXPECT_EQ(as_text(file.view("c")), "fgh");
}

TEST(SafetensorsAcceptTest, Names) {
  const std::vector<std::pair<std::string, std::string>> written_and_read = {
      {"", ""},
      {"a\\u0000b", std::string("a\0b", 3)},
      {"../x", "../x"},
      {"\\ud83d\\ude00", "\xF0\x9F\x98\x80"},
      {"\xF0\x9F\x98\x80 ", "\xF0\x9F\x98\x80 "},
      {"\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t"},
      {"\\u00E9\\u20ac", "\xC3\xA9\xE2\x82\xAC"},
      {std::string(100'000, 'n'), std::string(100'000, 'n')},
  };
  for (const auto& [written, read] : written_and_read) {
    const std::string bytes = file_with("{" + entry(written, "U8", "1", "0,1") + "}", 1);
    const SafetensorsFile file = parse(bytes);
    ASSERT_EQ(file.names(), Names{read});
    EXPECT_NE(file.find(read), nullptr);
  }
}

TEST(SafetensorsAcceptTest, AnyValues) {
  const double values[] = {NAN, std::numeric_limits<double>::infinity()};
  const std::string bytes = file_with("{" + entry("a", "F64", "2", "0,16") + "}",
                                      std::string(reinterpret_cast<const char*>(values), 16));
  EXPECT_NO_THROW(parse(bytes));
}

TEST(SafetensorsAcceptTest, EveryType) {
  for (const DType dtype : all_dtypes()) {
    const std::uint64_t size = byte_size(dtype, Shape{8}).value();
    const std::string bytes = file_with(
        "{" + entry("a", std::string(dtype_name(dtype)), "8", "0," + std::to_string(size)) + "}",
        size);
    EXPECT_EQ(parse(bytes).info("a").dtype, dtype);
  }
}

TEST(SafetensorsAcceptTest, SixtyFourDimensions) {
  std::string ones = "1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  const std::string bytes = file_with("{" + entry("a", "U8", ones, "0,1") + "}", 1);
  EXPECT_EQ(parse(bytes).info("a").shape.size(), 64U);
}

// Work that grows with the square of the number of tensors would take hours.
TEST(SafetensorsAcceptTest, AMillionTensors) {
  constexpr std::uint64_t count = 1'000'000;
  std::string header = "{";
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t place = i * 7919 % count;  // out of order
    if (i > 0) header += ',';
    header += entry("layer." + std::to_string(place), "U8", "1",
                    std::to_string(place) + "," + std::to_string(place + 1));
  }
  header += '}';
  const std::string bytes = file_with(header, count);
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(file.tensors().size(), count);
  EXPECT_EQ(file.info("layer.77").begin, 77U);
  EXPECT_EQ(as_text(file.view("layer.26")), "a");
}

}  // namespace
