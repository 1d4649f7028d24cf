// Models in one file or in several.
#include "accelerant/format/sharded_safetensors.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "format/file_bytes.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::format;

const std::string first_name = "model-00001-of-00002.safetensors";
const std::string second_name = "model-00002-of-00002.safetensors";

std::string file_of_one(const std::string& name) {
  return file_with("{" + entry(name, "U8", "3", "0,3") + "}", 3);
}

// A folder with the tensors a and b in two files.
class ShardedSafetensorsTest : public testing::Test {
 protected:
  std::string write_index(const ShardIndex& content) const {
    return folder.write("model.safetensors.index.json", print_shard_index(content));
  }

  TempFolder folder;
  ShardIndex index = {.total_size = 6, .weight_map = {{"a", first_name}, {"b", second_name}}};
  std::string first = folder.write(first_name, file_of_one("a"));
  std::string second = folder.write(second_name, file_of_one("b"));
};

TEST_F(ShardedSafetensorsTest, SeveralFiles) {
  const ShardedSafetensors model = ShardedSafetensors::open(write_index(index));
  EXPECT_EQ(model.index(), index);
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model.files().size(), 2U);
  EXPECT_EQ(model.file_of("b").label(), second);
  EXPECT_EQ(as_text(model.file_of("b").view("b")), "abc");
  EXPECT_EQ(model.total_bytes(), 6U);
  EXPECT_TRUE(contains(whole_error_of([&] { model.file_of("c"); }), "there is no tensor 'c'"));
}

TEST_F(ShardedSafetensorsTest, OneFile) {
  const ShardedSafetensors model = ShardedSafetensors::open(first, {.access = FileAccess::read});
  EXPECT_EQ(model.names(), std::vector<std::string>{"a"});
  EXPECT_EQ(model.file_of("a").label(), first);
  EXPECT_EQ(model.index().weight_map.at("a"), first_name);
}

TEST_F(ShardedSafetensorsTest, MissingFile) {
  index.weight_map["c"] = "gone.safetensors";
  const std::string path = write_index(index);
  EXPECT_TRUE(contains(whole_error_of([&] { ShardedSafetensors::open(path); }),
                       folder.path("gone.safetensors") + ": the file cannot be opened"));
}

TEST_F(ShardedSafetensorsTest, MissingTensor) {
  index.weight_map["c"] = first_name;
  const std::string path = write_index(index);
  for (const bool strict : {true, false}) {
    EXPECT_TRUE(
        contains(whole_error_of([&] { ShardedSafetensors::open(path, {.strict = strict}); }),
                 path + ": tensor 'c' is not in its file: expected it in '" + first_name + "'"));
  }
}

TEST_F(ShardedSafetensorsTest, TensorsThatTheIndexDoesNotName) {
  const std::string both =
      "{" + entry("b", "U8", "3", "0,3") + "," + entry("x", "U8", "0", "3,3") + "}";
  folder.write(second_name, file_with(both, 3));
  const std::string path = write_index(index);
  EXPECT_TRUE(
      contains(whole_error_of([&] { ShardedSafetensors::open(path); }),
               "file '" + second_name + "' has a tensor that the index does not name: got 'x'"));
  EXPECT_EQ(ShardedSafetensors::open(path, {.strict = false}).names().size(), 2U);
}

TEST_F(ShardedSafetensorsTest, ATensorInTwoFiles) {
  const std::string both =
      "{" + entry("b", "U8", "3", "0,3") + "," + entry("a", "U8", "3", "3,6") + "}";
  folder.write(second_name, file_with(both, 6));
  const std::string path = write_index(index);
  EXPECT_TRUE(contains(whole_error_of([&] { ShardedSafetensors::open(path); }),
                       "expected it only in '" + first_name + "', got 'a'"));
}

TEST_F(ShardedSafetensorsTest, FilesOutsideOfTheFolder) {
  index.weight_map["c"] = "../" + first_name;
  const std::string path = write_index(index);
  EXPECT_TRUE(contains(whole_error_of([&] { ShardedSafetensors::open(path); }),
                       "the name of a shard is refused"));
}

}  // namespace
