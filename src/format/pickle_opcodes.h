// The opcodes of Python's pickle format that plain data needs (pickletools.py lists all).
#pragma once

#include <cstdint>

namespace accelerant::format {

enum class Opcode : uint8_t {
  // Protocol 2, which torch.save writes.
  proto = 0x80,
  stop = '.',
  mark = '(',
  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  long1 = 0x8a,
  long4 = 0x8b,
  bin_float = 'G',
  bin_unicode = 'X',
  short_bin_string = 'U',
  empty_list = ']',
  append = 'a',
  appends = 'e',
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_dict = '}',
  set_item = 's',
  set_items = 'u',
  bin_get = 'h',
  long_bin_get = 'j',
  bin_put = 'q',
  long_bin_put = 'r',
  global = 'c',
  reduce = 'R',
  build = 'b',
  new_object = 0x81,
  bin_pers_id = 'Q',
  // Protocol 3.
  bin_bytes = 'B',
  short_bin_bytes = 'C',
  // Protocol 4.
  short_bin_unicode = 0x8c,
  bin_unicode8 = 0x8d,
  bin_bytes8 = 0x8e,
  empty_set = 0x8f,
  add_items = 0x90,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  // Protocol 5.
  byte_array8 = 0x96,
};

}  // namespace accelerant::format
