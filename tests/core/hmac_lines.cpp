// Reads a key and a message in hexadecimal digits from each line, and writes SHA-256 of the message
// and HMAC of both. hmac_test.py compares them with Python's.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "core/hmac.h"

namespace {

std::vector<std::byte> bytes_in(const std::string& word) {  // "-": none
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < word.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(word.substr(i, 2), nullptr, 16)));
  return bytes;
}

void write(const accelerant::Digest& digest) {
  for (const std::byte byte : digest) std::printf("%02x", std::to_integer<unsigned int>(byte));
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string key;
    std::string message;
    words >> key >> message;
    write(accelerant::sha256(bytes_in(message)));
    std::putchar(' ');
    write(accelerant::hmac_sha256(bytes_in(key), bytes_in(message)));
    std::putchar('\n');
  }
}
