// Files that must be refused: those the reference implementation refuses, and those for which our
// rules are stricter.
#include <accelerant/format/safetensors.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "format/file_bytes.h"
#include "support/expect_error.h"

namespace {

const std::string one_u8 = entry("a", "U8", "1", "0,1");

// The file is refused with a message that contains these words.
void expect_refused(const std::string& bytes, const std::string& words) {
  const std::string message = whole_error_of([&] { parse(bytes); });
  EXPECT_TRUE(contains(message, words)) << bytes.substr(0, 300);
  EXPECT_TRUE(message.starts_with("memory: ")) << message;
}

void expect_header_refused(const std::string& header, const std::string& words) {
  expect_refused(file_with(header), words);
}

// An entry that is valid except for one field, and one byte of data.
void expect_shape_refused(const std::string& shape, const std::string& words) {
  expect_refused(file_with("{" + entry("a", "U8", shape, "0,1") + "}", 1), words);
}
void expect_offsets_refused(const std::string& offsets, const std::string& words) {
  expect_refused(file_with("{" + entry("a", "U8", "1", offsets) + "}", 1), words);
}

TEST(SafetensorsRejectTest, TooShort) {
  expect_refused("", "expected at least 8 bytes, got 0");
  expect_refused(std::string(7, '\0'), "expected at least 8 bytes, got 7");
}

TEST(SafetensorsRejectTest, NoHeader) {
  expect_header_refused("", "at byte 0: the text ends early");
}

TEST(SafetensorsRejectTest, HeaderLongerThanTheFile) {
  expect_refused(little_endian(1000) + "{}", "expected at most 2 bytes, got 1000");
  expect_refused(little_endian(100'000'000) + "{}", "longer than the file");
  expect_refused(little_endian(1), "longer than the file");
}

TEST(SafetensorsRejectTest, HeaderTooLong) {
  expect_refused(little_endian(100'000'001) + "{}", "expected at most 100000000 bytes");
  expect_refused(little_endian(~std::uint64_t{0}) + "{}", "got 18446744073709551615");
  expect_refused(std::string("<\0\0\0\0\xff\xff\xff", 8), "too long");
  std::string header = "{}";
  header.resize(100'000'001, ' ');
  expect_header_refused(header, "too long");
}

TEST(SafetensorsRejectTest, NoUtf8) {
  for (const std::string bad :
       {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    expect_refused(file_with("{" + entry(bad, "U8", "1", "0,1") + "}", 1),
                   "at byte 2: invalid UTF-8");
  }
}

TEST(SafetensorsRejectTest, NoJsonObject) {
  expect_header_refused("\xEF\xBB\xBF{}", "at byte 0: expected an object");
  expect_header_refused(std::string("{}\0\0\0\0\0\0", 8), "expected the end of the text");
  expect_header_refused("{", "the text ends early");
  expect_header_refused("[]", "expected an object");
  expect_header_refused("null", "expected an object");
  expect_header_refused("{}{}", "expected the end of the text");
  expect_header_refused("  ", "the text ends early");
  expect_header_refused("{]", "expected a string");
}

TEST(SafetensorsRejectTest, BrokenJson) {
  expect_refused(file_with("{" + one_u8 + ",}", 1), "expected a string");
  expect_refused(file_with("{,}", 1), "expected a string");
  expect_refused(file_with("{" + one_u8 + " " + one_u8 + "}", 1), "expected ',' or '}'");
  expect_refused(file_with("{/**/" + one_u8 + "}", 1), "expected a string");
  expect_refused(file_with("{" + one_u8 + "} // end", 1), "expected the end of the text");
  expect_refused(file_with("{" + entry("a\nb", "U8", "1", "0,1") + "}", 1), "control character");
  expect_refused(file_with("{'a':1}", 1), "expected a string");
  expect_refused(file_with("{\"a\"}", 1), "expected ':'");
  expect_refused(file_with("{\"a", 1), "ends inside a string");
  expect_refused(file_with("{\"a\\", 1), "ends inside a string");
  expect_shape_refused("1,", "expected a whole number");
  expect_shape_refused(",1", "expected a whole number");
  expect_shape_refused("1 1", "expected ',' or ']'");
}

TEST(SafetensorsRejectTest, BadEscapes) {
  for (const std::string name :
       {"\\ud800", "\\ud800x", "\\ud800\\n", "\\ud800\\u0041", "\\udc00"}) {
    expect_refused(file_with("{" + entry(name, "U8", "1", "0,1") + "}", 1),
                   "half of a surrogate pair");
  }
  for (const std::string name : {"\\u12", "\\u12G4", "\\u-123", "\\u+123", "\\u 123", "\\u0x12"}) {
    expect_refused(file_with("{" + entry(name, "U8", "1", "0,1") + "}", 1),
                   "four hexadecimal digits");
  }
  for (const std::string name : {"\\x41", "\\a", "\\'", "\\0"}) {
    expect_refused(file_with("{" + entry(name, "U8", "1", "0,1") + "}", 1), "unknown escape");
  }
}

TEST(SafetensorsRejectTest, BytesAfterTheTensors) {
  expect_refused(file_with("{}", 1), "expected 0 bytes of data, got 1");
  expect_refused(file_with("{" + one_u8 + "}", 2), "expected 1 bytes of data, got 2");
  expect_refused(file_with("{" + one_u8 + "}", std::string("xPK\x03\x04")),
                 "bytes after the last tensor");
}

TEST(SafetensorsRejectTest, TooFewBytes) {
  expect_refused(file_with("{" + one_u8 + "}", 0), "expected 1 bytes of data, got 0");
}

TEST(SafetensorsRejectTest, Holes) {
  expect_refused(file_with("{" + entry("a", "U8", "1", "1,2") + "}", 2),
                 "tensor 'a': there is a hole");
  expect_refused(file_with("{" + one_u8 + "," + entry("b", "U8", "1", "2,3") + "}", 3),
                 "tensor 'b': there is a hole");
  expect_refused(file_with("{" + one_u8 + "," + entry("z", "U8", "0", "2,2") + "}", 1),
                 "tensor 'z': there is a hole");
}

TEST(SafetensorsRejectTest, Overlap) {
  expect_refused(
      file_with("{" + entry("a", "U8", "2", "0,2") + "," + entry("b", "U8", "2", "1,3") + "}", 3),
      "tensor 'b': its data overlaps");
  std::string header = "{" + one_u8;
  for (int i = 0; i < 9; ++i) header += "," + entry("b" + std::to_string(i), "U8", "1", "0,1");
  expect_refused(file_with(header + "}", 1), "its data overlaps");
  expect_refused(
      file_with("{" + entry("a", "U8", "2", "0,2") + "," + entry("z", "U8", "0", "1,1") + "}", 2),
      "tensor 'z': its data overlaps");
}

TEST(SafetensorsRejectTest, ReversedOffsets) {
  expect_offsets_refused("1,0", "hole");
  expect_refused(file_with("{" + one_u8 + "," + entry("b", "U8", "1", "1,0") + "}", 1),
                 "tensor 'b': its data ends before it begins");
}

TEST(SafetensorsRejectTest, SizeOfAnotherShape) {
  expect_refused(file_with("{" + entry("w", "F32", "2,2", "0,15") + "}", 15),
                 "expected 16 bytes, got 15");
  expect_refused(file_with("{" + entry("w", "F32", "2,2", "0,17") + "}", 17),
                 "expected 16 bytes, got 17");
  expect_refused(file_with("{" + entry("w", "U8", "0", "0,1") + "}", 1), "expected 0 bytes, got 1");
}

TEST(SafetensorsRejectTest, Overflow) {
  expect_shape_refused("2,18446744073709551614", "larger than 2^63-1");
  expect_refused(file_with("{" + entry("a", "I32", "2,9223372036854775807", "0,1") + "}", 1),
                 "too many elements of type I32");
  expect_shape_refused("18446744073709551615,18446744073709551615,0", "larger than 2^63-1");
  expect_shape_refused("18446744073709551615", "larger than 2^63-1");
  expect_shape_refused("4294967296,4294967296", "too many elements");
  expect_shape_refused("2305843009213693952", "too many elements");  // 2^64 bits
}

TEST(SafetensorsRejectTest, MisalignedSubByteTypes) {
  expect_refused(file_with("{" + entry("a", "F4", "3", "0,1") + "}", 1), "do not fill whole bytes");
  expect_refused(file_with("{" + entry("a", "F4", "3", "0,2") + "}", 2), "do not fill whole bytes");
  expect_refused(file_with("{" + entry("a", "F6_E2M3", "1", "0,1") + "}", 1),
                 "do not fill whole bytes");
}

TEST(SafetensorsRejectTest, FormsOfNumbers) {
  for (const std::string number :
       {"-1",  "1.0", "1e0", "\"1\"", "-0",  "01",   "18446744073709551616",
        "1E1", "+1",  ".1",  "1.",    "0x1", "null", "true",
        "[1]", "{}",  "00",  "1e",    "1e+", "NaN",  "Infinity",
        "1_0"}) {
    const std::string shaped = file_with("{" + entry("a", "U8", number, "0,1") + "}", 1);
    const std::string placed = file_with("{" + entry("a", "U8", "1", "0," + number) + "}", 1);
    for (const std::string& bytes : {shaped, placed}) expect_refused(bytes, "cannot be parsed");
  }
}

TEST(SafetensorsRejectTest, NumbersNobodyReads) {
  for (const std::string number :
       {"1e999", "-1e999", "1e99999999999999999999", "-", "1.", ".5", "00"}) {
    expect_refused(file_with("{\"a\":{\"x\":" + number + "," + one_u8.substr(5) + "}", 1),
                   "cannot be parsed");
  }
  expect_refused(
      file_with("{\"a\":{\"x\":1" + std::string(400, '0') + "," + one_u8.substr(5) + "}", 1),
      "too large");
}

TEST(SafetensorsRejectTest, NumberOfOffsets) {
  expect_offsets_refused("0", "fewer than two entries");
  expect_offsets_refused("", "fewer than two entries");
  expect_offsets_refused("0,1,1", "more than two entries");
}

TEST(SafetensorsRejectTest, MissingFields) {
  expect_header_refused(R"({"a":{"shape":[0],"data_offsets":[0,0]}})", "'dtype' is missing");
  expect_header_refused(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", "'shape' is missing");
  expect_header_refused(R"({"a":{"dtype":"U8","shape":[0]}})", "'data_offsets' is missing");
  expect_header_refused(R"({"a":{}})", "'dtype' is missing");
}

TEST(SafetensorsRejectTest, EntriesOfAnotherKind) {
  for (const std::string value : {"\"U8\"", "1", "null", "true", "[]"}) {
    expect_header_refused("{\"a\":" + value + "}", "expected an object");
  }
  expect_header_refused(R"({"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})",
                        "expected a string");
  expect_header_refused(R"({"a":{"dtype":"U8","shape":0,"data_offsets":[0,0]}})",
                        "expected an array");
  expect_header_refused(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":{}}})",
                        "expected an array");
}

TEST(SafetensorsRejectTest, UnknownTypes) {
  for (const std::string dtype : {"X8", "f32", "C128", "F128", "", "F32 "}) {
    expect_refused(file_with("{" + entry("a", dtype, "1", "0,1") + "}", 1),
                   "tensor 'a': unknown dtype '" + dtype + "'");
  }
}

TEST(SafetensorsRejectTest, FieldsTwice) {
  expect_header_refused(R"({"__metadata__":{},"__metadata__":{}})", "'__metadata__' occurs twice");
  expect_header_refused(R"({"__metadata__":null,"__metadata__":null})",
                        "'__metadata__' occurs twice");
  expect_header_refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                        "'dtype' occurs twice");
  expect_header_refused(R"({"a":{"dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0]}})",
                        "'shape' occurs twice");
  expect_header_refused(
      R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"data_offsets":[0,0]}})",
      "'data_offsets' occurs twice");
}

TEST(SafetensorsRejectTest, MetadataOfAnotherKind) {
  for (const std::string value : {"1", "null", "{}", "[]", "true"}) {
    expect_header_refused("{\"__metadata__\":{\"a\":" + value + "}}", "expected a string");
  }
  for (const std::string value : {"[]", "\"a\"", "1", "true"}) {
    expect_header_refused("{\"__metadata__\":" + value + "}", "expected an object");
  }
  expect_refused(file_with("{" + entry("__metadata__", "U8", "1", "0,1") + "}", 1),
                 "expected a string");
}

TEST(SafetensorsRejectTest, DeepNesting) {
  for (const std::string brackets : {"[]", "{}"}) {
    for (const std::size_t depth : {126U, 200U, 1'000'000U}) {
      std::string open;
      for (std::size_t i = 0; i < depth; ++i) open += brackets == "[]" ? "[" : "{\"a\":";
      expect_header_refused("{\"a\":{\"x\":" + open, "nested too deeply");
    }
  }
}

// --- Stricter than the reference ------------------------------------------------------------------

TEST(SafetensorsStricterTest, NamesTwice) {
  expect_refused(file_with("{" + one_u8 + "," + one_u8 + "}", 1), "'a': the name occurs twice");
  expect_refused(file_with("{" + one_u8 + "," + entry("a", "I8", "1", "0,1") + "}", 1),
                 "occurs twice");
  expect_refused(file_with("{" + one_u8 + "," + entry("\\u0061", "I8", "1", "1,2") + "}", 2),
                 "occurs twice");
  expect_header_refused(
      "{" + entry("a", "U8", "0", "0,0") + "," + entry("a", "U8", "0", "0,0") + "}",
      "occurs twice");
}

TEST(SafetensorsStricterTest, MetadataKeysTwice) {
  expect_header_refused(R"({"__metadata__":{"a":"1","b":"2","a":"1"}})",
                        "the key 'a' of '__metadata__'");
}

TEST(SafetensorsStricterTest, EntryAsArray) {
  expect_refused(file_with(R"({"a":["U8",[1],[0,1]]})", 1), "expected an object");
}

TEST(SafetensorsStricterTest, TypeAsObject) {
  expect_header_refused(R"({"a":{"dtype":{"U8":null},"shape":[0],"data_offsets":[0,0]}})",
                        "expected a string");
}

TEST(SafetensorsStricterTest, OverflowBesideAZero) {
  for (const std::string shape :
       {"0,9223372036854775807,9223372036854775807", "9223372036854775807,0,9223372036854775807",
        "9223372036854775807,9223372036854775807,0"}) {
    expect_header_refused("{" + entry("a", "U8", shape, "0,0") + "}", "too many elements");
  }
  expect_header_refused(
      "{" + entry("a", "U8", "0,18446744073709551615,18446744073709551615", "0,0") + "}",
      "larger than 2^63-1");
}

TEST(SafetensorsStricterTest, OffsetsNearTheEndOfNumbers) {
  expect_offsets_refused("0,18446744073709551615", "got 18446744073709551615");
  expect_offsets_refused("18446744073709551615,18446744073709551615", "hole");
}

TEST(SafetensorsStricterTest, Rank) {
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  expect_shape_refused(ones, "more than 64 dimensions");
}

TEST(SafetensorsStricterTest, NamesInMessagesAreShortAndPrintable) {
  const std::string name = "\\n" + std::string(1'000'000, 'x');
  const std::string bytes = file_with("{" + entry(name, "U9", "1", "0,1") + "}", 1);
  const std::string message = whole_error_of([&] { parse(bytes); });
  EXPECT_LT(message.size(), 400U);
  EXPECT_TRUE(contains(message, "tensor '\\nxxx"));
}

}  // namespace
