// Tensors that lie in their storage in any way, read part by part.
#include "format/plain_tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "archive_helpers.h"
#include "support/expect_error.h"
#include "support/random_seed.h"

namespace {

using namespace accelerant::format;

constexpr int64_t kTera = int64_t{1} << 40;

// As slow and plain as can be.
std::string rows_one_by_one(const PlainTensor& tensor) {
  const auto size = static_cast<std::size_t>(find_dtype(tensor.dtype)->size);
  const std::string all = text_of(tensor.storage->bytes());
  std::string rows;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    int64_t rest = i;
    int64_t at = tensor.storage_offset;
    for (std::size_t d = tensor.shape.size(); d-- > 0;) {
      at += rest % tensor.shape[d] * tensor.strides[d];
      rest /= tensor.shape[d];
    }
    rows += all.substr(static_cast<std::size_t>(at) * size, size);
  }
  return rows;
}

TEST(PlainTensor, AnyPartOfAnyViewIsRead) {
  std::mt19937 generator(random_seed());
  const auto below = [&](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(generator);
  };
  std::string content(4096, '\0');
  for (char& c : content) c = static_cast<char>(generator());
  const auto storage = storage_of(content);
  const char* const dtypes[] = {"U8", "F16", "F32", "F64", "C128"};
  for (int round = 0; round < 3000; ++round) {
    PlainTensor tensor;
    tensor.dtype = dtypes[below(5)];
    tensor.storage = storage;
    const int64_t elements = 4096 / find_dtype(tensor.dtype)->size;
    int64_t reach = tensor.storage_offset = below(20);
    int64_t inner = 1;
    for (int64_t rank = below(5); rank > 0; --rank) {
      const int64_t size = below(6) == 0 ? 1 : 1 + below(6);
      const int64_t stride = size == 1 && below(2) == 0
                                 ? std::numeric_limits<int64_t>::max()  // is not used
                             : below(3) == 0 ? inner
                                             : below(9);
      if (size > 1 && reach + (size - 1) * stride >= elements) break;
      if (size > 1) {
        reach += (size - 1) * stride;
        inner = size * stride;  // an outer dimension with this stride continues this one
      }
      tensor.shape.insert(tensor.shape.begin(), size);
      tensor.strides.insert(tensor.strides.begin(), stride);
    }
    const std::string rows = rows_one_by_one(tensor);
    ASSERT_EQ(rows_of(tensor), rows) << round;
    const auto size = static_cast<int64_t>(rows.size());
    for (int i = 0; i < 5; ++i) {
      const auto begin = static_cast<std::size_t>(below(size));
      std::string part(static_cast<std::size_t>(1 + below(size - static_cast<int64_t>(begin))),
                       '\0');
      read_in_rows(tensor, begin, std::as_writable_bytes(std::span(part)));
      ASSERT_EQ(part, rows.substr(begin, part.size())) << round;
    }
  }
}

TEST(PlainTensor, PartsBeyondTheEndAreRefused) {
  const PlainTensor tensor = PlainTensor::contiguous("U8", {2, 3}, storage_of("abcdef"));
  std::byte two[2];
  EXPECT_TRUE(contains(error_of([&] { read_in_rows(tensor, 5, two); }), "beyond its end"));
  EXPECT_TRUE(contains(error_of([&] { read_in_rows(tensor, 1ULL << 63, two); }), "beyond its end"));
}

PlainTensor expanded_tensor() {
  PlainTensor tensor;
  tensor.shape = {kTera};
  tensor.strides = {0};
  tensor.storage = storage_of("abcd");
  return tensor;
}

TEST(PlainTensor, AnExpandedOneIsReadWithoutMemoryForIt) {
  const PlainTensor tensor = expanded_tensor();
  std::string part(6, '\0');
  read_in_rows(tensor, static_cast<uint64_t>(kTera) * 4 - 6,
               std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "cdabcd");
}

TEST(PlainTensor, AnExpandedOneIsRefusedByNameAndSize) {
  const std::string error =
      error_of([] { refuse_expanded(expanded_tensor(), "x.bin: tensor 'w'", "ask nicely"); });
  for (const char* part : {"x.bin: tensor 'w' is an expanded view", "the 4 bytes", "4398046511104",
                           "[1099511627776]", ", or ask nicely"}) {
    EXPECT_TRUE(contains(error, part));
  }
  // Parts, and the whole in another order, hold no more than the storage.
  PlainTensor turned;
  turned.dtype = "U8";
  turned.shape = {3, 2};
  turned.strides = {1, 3};
  turned.storage = storage_of("abcdef");
  EXPECT_NO_THROW(refuse_expanded(turned, "", ""));
  EXPECT_NO_THROW(refuse_repeated(16 * 6, 6, "", "", ""));
  EXPECT_TRUE(
      contains(error_of([] { refuse_repeated(16 * 6 + 1, 6, "x.bin", "tensor 'w'", "ask"); }),
               "97 bytes with tensor 'w'"));
}

TEST(PlainStorage, IsMadeWhenItIsWritten) {
  const std::string content(100'000, 'x');
  const auto lazy = std::make_shared<const PlainStorage>(content.size(), [&](ByteSink& sink) {
    for (std::size_t i = 0; i < content.size(); i += 1000) {
      sink.write(std::as_bytes(std::span(content).subspan(i, 1000)));
    }
  });
  const std::vector<int64_t> shape = {100'000};
  EXPECT_EQ(written(PlainTensor::contiguous("U8", shape, lazy)),
            written(PlainTensor::contiguous("U8", shape, storage_of(content))));
  EXPECT_THROW(lazy->bytes(), accelerant::Error);
  const auto short_one = std::make_shared<const PlainStorage>(
      content.size(), [](ByteSink& sink) { sink.write(std::as_bytes(std::span("x", 1))); });
  EXPECT_TRUE(contains(error_of([&] { written(PlainTensor::contiguous("U8", shape, short_one)); }),
                       "a record of an archive has the wrong size"));
}

}  // namespace
