// Splitting over several files, and their index. shards_fuzz_test.py compares with huggingface_hub.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "format/shard_index.h"
#include "format/shard_split.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::format;
using Files = std::vector<std::vector<std::string>>;

Files names_in(const ShardPlan& plan) {
  Files files;
  for (const Shard& shard : plan.shards) files.push_back(shard.tensors);
  return files;
}

TEST(ByteSizeTest, Units) {
  EXPECT_EQ(parse_byte_size("5MB"), 5'000'000U);
  EXPECT_EQ(parse_byte_size("10GB"), 10'000'000'000U);
  EXPECT_EQ(parse_byte_size("1.5GB"), 1'500'000'000U);
  EXPECT_EQ(parse_byte_size(" 2 tb "), 2'000'000'000'000U);
  EXPECT_EQ(parse_byte_size("3Kb"), 3000U);
  EXPECT_EQ(parse_byte_size("5GiB"), 5U * (std::uint64_t{1} << 30));
  EXPECT_EQ(parse_byte_size("1mib"), std::uint64_t{1} << 20);
  EXPECT_EQ(parse_byte_size("0.5KiB"), 512U);
  EXPECT_EQ(parse_byte_size("1TiB"), std::uint64_t{1} << 40);
  EXPECT_EQ(parse_byte_size("0GB"), 0U);
  EXPECT_EQ(parse_byte_size("1e1KB"), 10'000U);
  EXPECT_EQ(parse_byte_size("0.0001KB"), 0U);
}

TEST(ByteSizeTest, OtherTexts) {
  for (const std::string text : {"", "5", "GB", " GB", "5XB", "5B", "-5GB", "infGB", "nanGB",
                                 "1_0GB", "5 5GB", "0x5GB", "5GBB", "1e30TB", "+5GB", "KiB"}) {
    EXPECT_TRUE(
        contains(whole_error_of([&] { parse_byte_size(text); }), "expected a number and one of KB"))
        << text;
  }
}

TEST(ShardSplitTest, TheExampleOfHuggingFace) {
  const std::vector<TensorToPlace> tensors = {{"a", 6}, {"b", 6}, {"c", 2},
                                              {"d", 6}, {"e", 2}, {"f", 2}};
  const ShardPlan plan = split_into_shards(tensors, 10);
  EXPECT_EQ(names_in(plan), (Files{{"a"}, {"b", "c"}, {"d", "e", "f"}}));
  EXPECT_EQ(plan.shards[0].file, "model-00001-of-00003.safetensors");
  EXPECT_EQ(plan.shards[2].file, "model-00003-of-00003.safetensors");
  EXPECT_EQ(plan.total_size, 24U);
  EXPECT_TRUE(plan.is_sharded());
}

TEST(ShardSplitTest, OneFile) {
  const std::vector<TensorToPlace> tensors = {{"a", 6}, {"b", 4}};
  const ShardPlan plan = split_into_shards(tensors, 10, {.stem = "x", .extension = ".st"});
  ASSERT_EQ(plan.shards.size(), 1U);
  EXPECT_EQ(plan.shards[0].file, "x.st");
  EXPECT_FALSE(plan.is_sharded());
  EXPECT_EQ(ShardNaming{}.index_file(), "model.safetensors.index.json");
  EXPECT_TRUE(split_into_shards({}, 10).shards.empty());
}

TEST(ShardSplitTest, LargeTensorsGoAlone) {
  const std::vector<TensorToPlace> tensors = {{"a", 1}, {"large", 100}, {"b", 1}};
  EXPECT_EQ(names_in(split_into_shards(tensors, 10)), (Files{{"large"}, {"a", "b"}}));
}

TEST(ShardSplitTest, SharedMemoryStaysTogether) {
  const std::vector<TensorToPlace> tensors = {
      {"a", 6, 1}, {"b", 6, 2}, {"c", 6, 1}, {"d", 4, 2}, {"e", 1}};
  const ShardPlan plan = split_into_shards(tensors, 10);
  EXPECT_EQ(names_in(plan), (Files{{"a", "c"}, {"b", "e", "d"}}));
  EXPECT_EQ(plan.total_size, 13U);
}

TEST(ShardSplitTest, Refused) {
  const std::vector<TensorToPlace> twice = {{"a", 6}, {"a", 6}};
  EXPECT_TRUE(contains(whole_error_of([&] { split_into_shards(twice, 10); }),
                       "'a': the name occurs twice"));
  const std::vector<TensorToPlace> large = {{"a", ~std::uint64_t{0}}, {"b", 1}};
  EXPECT_TRUE(contains(whole_error_of([&] { split_into_shards(large, 10); }), "too large"));
  EXPECT_EQ(split_into_shards(std::vector<TensorToPlace>{{"a", 7}, {"b", 1}}, ~std::uint64_t{0})
                .shards.size(),
            1U);
}

const std::string printed = R"({
  "metadata": {
    "total_parameters": 3,
    "total_size": 12
  },
  "weight_map": {
    "a\"b": "model-00001-of-00002.safetensors",
    "\u00e9\ud83d\ude00\u007f": "model-00002-of-00002.safetensors"
  }
}
)";

TEST(ShardIndexTest, RoundTrip) {
  const ShardIndex index = {
      .total_size = 12,
      .other_metadata = {{"total_parameters", "3"}},
      .weight_map = {{"a\"b", "model-00001-of-00002.safetensors"},
                     {"\xC3\xA9\xF0\x9F\x98\x80\x7F", "model-00002-of-00002.safetensors"}}};
  EXPECT_EQ(print_shard_index(index), printed);
  EXPECT_EQ(parse_shard_index(printed), index);
  EXPECT_EQ(index.files(), (std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                     "model-00002-of-00002.safetensors"}));
  const TempFolder folder;
  EXPECT_EQ(read_shard_index(folder.write("i.json", printed)), index);
  EXPECT_EQ(print_shard_index({}), "{\n  \"metadata\": {},\n  \"weight_map\": {}\n}\n");
}

TEST(ShardIndexTest, OfAPlan) {
  const std::vector<TensorToPlace> tensors = {{"a", 6}, {"b", 6}};
  const ShardIndex index = index_of(split_into_shards(tensors, 10));
  EXPECT_EQ(index.total_size, 12U);
  EXPECT_EQ(index.weight_map.at("b"), "model-00002-of-00002.safetensors");
}

TEST(ShardIndexTest, FormsThatOccur) {
  EXPECT_EQ(parse_shard_index(R"({"weight_map":{}})"), ShardIndex{});
  EXPECT_EQ(parse_shard_index(R"({"metadata":null,"weight_map":{},"other":[1,{"a":null}]})"),
            ShardIndex{});
  EXPECT_EQ(parse_shard_index(R"({"metadata":{"total_size":12.0},"weight_map":{}})").total_size,
            12U);
  EXPECT_EQ(parse_shard_index(R"({"metadata":{"x": {"y": [1] } },"weight_map":{}})")
                .other_metadata.at("x"),
            R"({"y": [1] })");
}

TEST(ShardIndexTest, Refused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "the text ends early"},
      {"[]", "expected an object"},
      {"{}", "'weight_map' is missing"},
      {R"({"weight_map":[]})", "expected an object"},
      {R"({"weight_map":{"a":1}})", "expected a string"},
      {R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", "the key 'a' occurs twice"},
      {R"({"weight_map":{},"weight_map":{}})", "'weight_map' occurs twice"},
      {R"({"metadata":{},"metadata":{},"weight_map":{}})", "'metadata' occurs twice"},
      {R"({"metadata":{"total_size":1,"total_size":1},"weight_map":{}})",
       "'total_size' occurs twice"},
      {R"({"metadata":{"total_size":-1},"weight_map":{}})", "not a number of bytes"},
      {R"({"metadata":{"total_size":1.5},"weight_map":{}})", "not a number of bytes"},
      {R"({"metadata":{"total_size":"1"},"weight_map":{}})", "not a number of bytes"},
      {R"({"metadata":1,"weight_map":{}})", "expected an object"},
      {"{\"weight_map\":{\"\xFF\":\"\"}}", "invalid UTF-8"},
  };
  for (const auto& [json, words] : cases) {
    const std::string message = whole_error_of([&] { parse_shard_index(json, "i.json"); });
    EXPECT_TRUE(contains(message, words)) << json;
    EXPECT_TRUE(message.starts_with("i.json: ")) << message;
  }
}

TEST(ShardIndexTest, NamesThatStayInTheFolder) {
  for (const std::string file : {"model-00001-of-00002.safetensors", "sub/x.safetensors",
                                 "..x.safetensors", ".safetensors", "a..b/x.safetensors"}) {
    EXPECT_NO_THROW(check_shard_name(file)) << file;
  }
}

TEST(ShardIndexTest, NamesThatLeaveTheFolder) {
  for (const std::string file :
       {"/etc/x.safetensors", "\\x.safetensors", "\\\\server\\share\\x.safetensors",
        "C:x.safetensors", "C:\\x.safetensors", "../x.safetensors", "..\\x.safetensors",
        "a/../x.safetensors", "a\\..\\..\\x.safetensors", "x.bin", "x.SAFETENSORS", "", "..",
        "x.safetensors/.."}) {
    EXPECT_TRUE(contains(whole_error_of([&] { check_shard_name(file); }), "name of a shard"))
        << file;
  }
  const std::string with_zero("x\0.safetensors", 14);
  EXPECT_TRUE(contains(whole_error_of([&] { check_shard_name(with_zero); }), "zero bytes"));
  EXPECT_TRUE(contains(whole_error_of([] {
                         parse_shard_index(R"({"weight_map":{"a":"../x.safetensors"}})", "i.json");
                       }),
                       "got '../x.safetensors'"));
}

}  // namespace
