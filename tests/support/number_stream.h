// Streams of the numbers 0, 1, ..., of several abilities.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

// What was asked of a stream and its copies.
struct StreamCalls {
  int64_t reads = 0;  // next() that gave a sample
  int64_t skips = 0;  // samples passed over
  int64_t resets = 0;
};

// Says nothing about its length.
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

// Passes over samples and says how many there were.
struct CountingSkipStream : NumberStream {
  int64_t skip(int64_t n) { return pass(n); }
};

// Only says how long it is.
struct SizedSkipStream : SizedStream {
  void skip(int64_t n) { pass(n); }
};

template <class Stream>
Stream number_stream(int64_t length) {
  Stream stream;
  stream.length = length;
  return stream;
}
