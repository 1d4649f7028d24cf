#include "store/model_files.h"

#include <accelerant/format/safetensors.h>
#include <core/atomic_file.h>
#include <format/torch_archive.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "store/parallel_reads.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
namespace format = accelerant::format;

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

format::TensorToWrite tensor(const std::string& name, const Bytes& bytes) {
  return {.name = name,
          .dtype = format::DType::u8,
          .shape = {static_cast<int64_t>(bytes.size())},
          .data = bytes};
}

class ParallelReads : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<format::TensorToWrite> tensors;
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      tensors.push_back(tensor("t" + std::to_string(i), contents_[i]));
    }
    format::save_safetensors(path_, tensors);
    file_ = open_weight_file(path_);
  }

  const WeightTensor& stored(std::size_t i) const {
    return *std::ranges::find(file_->tensors(), "t" + std::to_string(i), &WeightTensor::name);
  }

  TempFolder folder_;
  std::string path_ = folder_.path("model.safetensors");
  // Of several pieces, of part of a piece, and empty.
  std::vector<Bytes> contents_ = {random_bytes((9 << 20) + 7, 1),
                                  random_bytes(3, 2),
                                  {},
                                  random_bytes(4 << 20, 3),
                                  random_bytes((6 << 20) + 1, 4)};
  std::unique_ptr<WeightFile> file_;
};

TEST_F(ParallelReads, AnyNumberOfThreadsReadsTheSame) {
  for (const int threads : {0, 1, 2, 7, 64}) {
    std::vector<Bytes> targets;
    for (const Bytes& content : contents_) targets.emplace_back(content.size());
    std::vector<TensorRead> reads;
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      reads.push_back({file_.get(), &stored(i), 0, targets[i]});
    }
    read_all(reads, threads);
    EXPECT_EQ(targets, contents_) << threads << " threads";
  }
}

TEST_F(ParallelReads, PartsBeginAnywhere) {
  constexpr std::size_t kOffset = 12345;
  Bytes target(contents_[0].size() - kOffset);
  read_all({{file_.get(), &stored(0), kOffset, target}}, 3);
  EXPECT_TRUE(std::ranges::equal(target, std::span(contents_[0]).subspan(kOffset)));
}

TEST_F(ParallelReads, OfTargetsThatOverlapTheLastCounts) {
  Bytes target(contents_[0].size());
  const auto part = std::span(target).subspan(5, contents_[4].size());
  for (int i = 0; i < 20; ++i) {
    read_all({{file_.get(), &stored(0), 0, target}, {file_.get(), &stored(4), 0, part}}, 8);
    ASSERT_TRUE(std::ranges::equal(part, contents_[4]));
  }
}

TEST_F(ParallelReads, AFileThatShrinksIsAnError) {
  const WeightTensor& last = file_->tensors().back();
  Bytes target(last.bytes);
  // Also by a single byte, when the rest of its page still reads as zeros.
  const auto size = static_cast<off_t>(TempFolder::content_of(path_).size());
  for (const off_t left : {size - 1, off_t{1} << 20}) {
    ASSERT_EQ(::truncate(path_.c_str(), left), 0);
    const std::string error = whole_error_of([&] {
      read_all({{file_.get(), &last, 0, target}}, 4);
    });
    EXPECT_TRUE(contains(error, "has shrunk")) << left;
  }
}

// A torch file with a column-major tensor, a second name for it, and a row-major tensor.
class TorchFile : public testing::Test {
 protected:
  void SetUp() override {
    const auto storage = std::make_shared<format::PlainStorage>(content_);
    format::PlainTensor turned;
    turned.dtype = "U8";
    turned.shape = {kColumns, kRows};
    turned.strides = {1, kColumns};
    turned.storage = storage;
    format::PlainDict state;
    state.set("turned", turned);
    state.set("again", turned);
    state.set("rows", format::PlainTensor::contiguous("U8", {kRows, kColumns}, storage));
    format::AtomicFile file(path_);
    format::write_torch_archive(std::move(state), file);
    file.commit();
  }

  static constexpr int64_t kRows = 2999, kColumns = 3001;

  TempFolder folder_;
  std::string path_ = folder_.path("pytorch_model.bin");
  Bytes content_ = random_bytes(kRows * kColumns, 5);
};

TEST_F(TorchFile, IsReadInPiecesByThreads) {
  const WeightFiles files = open_model(path_);
  const TensorsByName tensors(files);
  Bytes turned(content_.size()), rows(content_.size());
  read_all({{files[0].get(), tensors.find("turned")->tensor, 0, turned},
            {files[0].get(), tensors.find("rows")->tensor, 0, rows}},
           4);
  EXPECT_EQ(rows, content_);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t column = 0; column < kColumns; ++column) {
      ASSERT_EQ(turned[column * kRows + row], content_[row * kColumns + column]);
    }
  }
}

TEST_F(TorchFile, AllNamesOfATensorAreStored) {
  const WeightFiles files = open_model(path_);
  const TensorsByName tensors(files);
  std::vector<std::string> names = tensors.names();
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"again", "rows", "turned"}));
  EXPECT_EQ(tensors.find("turned")->tensor, tensors.find("again")->tensor);
  EXPECT_EQ(tensors.find("turned")->stored_name, "turned");
  EXPECT_EQ(tensors.find("again")->stored_name, "again");
  EXPECT_FALSE(tensors.find("other"));
}

TEST(ModelFiles, NamesInMetadataAreNotStored) {
  const TempFolder folder;
  const Bytes bytes = random_bytes(3, 6);
  format::save_safetensors(
      folder.path("model.safetensors"), {tensor("kept", bytes)},
      format::Metadata{{"format", "kept"}, {"other", "kept"}, {"origin", "a test"}});
  const WeightFiles files = open_model(folder.path());
  EXPECT_EQ(files[0]->aliases(), (std::map<std::string, std::string>{{"other", "kept"}}));
  EXPECT_EQ(files[0]->metadata(), (format::Metadata{{"format", "kept"}, {"origin", "a test"}}));
  const TensorsByName tensors(files);
  EXPECT_EQ(tensors.names(), std::vector<std::string>{"kept"});
  EXPECT_EQ(tensors.find("other")->stored_name, "kept");
  EXPECT_FALSE(tensors.find("format"));
}

TEST(ModelFiles, AreMappedAsTheyWereOpened) {
  const TempFolder folder;
  const std::string path = folder.path("model.safetensors");
  const Bytes bytes = random_bytes(300, 7);
  format::save_safetensors(path, {tensor("x", bytes)});
  std::shared_ptr<const format::SafetensorsFile> mapped;
  {
    const WeightFiles files = open_model(path);
    format::save_safetensors(path, {tensor("y", random_bytes(500, 8))});
    mapped = files[0]->map();
  }
  EXPECT_EQ(mapped->label(), path);
  EXPECT_TRUE(std::ranges::equal(mapped->view("x"), bytes));
  Bytes part(100);
  mapped->read_part("x", 200, part);
  EXPECT_TRUE(std::ranges::equal(part, std::span(bytes).subspan(200)));
}

TEST(ModelFiles, AFileWithOtherThingsSaysWhich) {
  const TempFolder folder;
  format::PlainDict state;
  state.set("epoch", int64_t{3});
  format::AtomicFile file(folder.path("state.pt"));
  format::write_torch_archive(std::move(state), file);
  file.commit();
  const std::string error = whole_error_of([&] { open_model(folder.path("state.pt")); });
  EXPECT_TRUE(contains(error, "is not a saved model"));
  EXPECT_TRUE(contains(error, "a Python int under the name 'epoch'"));
}

}  // namespace
