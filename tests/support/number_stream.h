// Streams of the numbers 0, 1, ..., with different abilities.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

// The calls to a stream and its copies.
struct StreamCalls {
  int64_t reads = 0;  // calls of next() that returned a sample
  int64_t skips = 0;  // samples skipped
  int64_t resets = 0;
};

// Does not know its length.
struct NumberStream {
  int64_t length = 0;
  std::shared_ptr<StreamCalls> calls = std::make_shared<StreamCalls>();
  int64_t place = 0;

  void reset() {
    place = 0;
    ++calls->resets;
  }
  std::optional<int64_t> next() {
    if (place >= length) return std::nullopt;
    ++calls->reads;
    return place++;
  }

 protected:
  int64_t pass(int64_t n) {
    const int64_t passed = std::clamp<int64_t>(length - place, 0, n);
    place += passed;
    calls->skips += passed;
    return passed;
  }
};

struct SizedStream : NumberStream {
  int64_t size() const { return length; }
};

// Skips samples and returns how many it skipped.
struct CountingSkipStream : NumberStream {
  int64_t skip(int64_t n) { return pass(n); }
};

// Skips samples without a count, but knows its length.
struct SizedSkipStream : SizedStream {
  void skip(int64_t n) { pass(n); }
};

template <class Stream>
Stream number_stream(int64_t length) {
  Stream stream;
  stream.length = length;
  return stream;
}
