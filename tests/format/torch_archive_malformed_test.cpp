// Damaged files and malicious files.
#include <format/torch_archive.h>
#include <gtest/gtest.h>

#include "format/archive_helpers.h"
#include "support/expect_error.h"

namespace {

using namespace accelerant::format;
using namespace std::string_literals;

std::string refusal_of_pickle(const std::string& pickle) {
  return error_of([&] { read_back(archive_of_pickle(pickle)); });
}

std::string refusal_of_value(const std::string& instructions) {
  return refusal_of_pickle(pickle_of(instructions));
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

// --- Pickles --------------------------------------------------------------------------------------

TEST(MalformedPickle, NamesWhatItAsksForAndExecutesNothing) {
  for (const std::string name :
       {"os\nsystem", "posix\nsystem", "builtins\neval", "__builtin__\ngetattr", "torch\nload",
        "torch._utils\n_rebuild_sparse_tensor", "builtins\ncomplex", "collections\ndefaultdict",
        "torch\nQInt8Storage", "torch\nfloat33", "numpy.core.multiarray\n_reconstruct", "\n",
        "torch.float32\n"}) {
    const std::string message = refusal_of_value("c" + name + "\n(" + pickled_text("id") + "tR");
    std::string dotted = name;
    dotted.replace(dotted.find('\n'), 1, ".");
    EXPECT_TRUE(contains(message, "test.pt: data.pkl, byte 2: "));
    EXPECT_TRUE(contains(message, "got " + dotted + ";"));
    EXPECT_TRUE(contains(message, "nothing was executed"));
  }
  // The same with the instruction of protocol 4.
  EXPECT_TRUE(contains(refusal_of_value(pickled_text("os") + pickled_text("system") + "\x93"),
                       "os.system"));
  EXPECT_TRUE(contains(refusal_of_value("K\1K\1\x93"), "not a string"));
}

TEST(MalformedPickle, RefusesInstructionsThatPlainDataDoNotNeed) {
  // Opcodes of protocol 0, INST, OBJ, NEWOBJ, extension codes, persistent ids as text, frozen
  // sets, ...
  for (const std::string opcode : {"I1\n", "(ios\nsystem\n", "o", "\x81", "\x92", "\x82", "Pabc\n",
                                   "0", "1", "2", "\x91", "\x97", "\x98", "d", "l", "\xff", "\1"}) {
    EXPECT_TRUE(
        contains(refusal_of_value("N)" + opcode), "instruction that plain data does not need"))
        << opcode;
  }
}

TEST(MalformedPickle, IsRefusedWhereItEndsEarly) {
  const std::string whole =
      pickle_of(pickled_tensor(pickled_storage(), "K\0"s, "K\2K\3\x86", "K\3K\1\x86"));
  EXPECT_EQ(read_back(archive_of_pickle(whole)).as_tensor().numel(), 6);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(refusal_of_pickle(whole.substr(0, size)).empty());
  }
  EXPECT_TRUE(contains(refusal_of_pickle(""), "expected 1 more byte, got 0"));
  EXPECT_TRUE(contains(refusal_of_value("X\xff\xff\xff\xff"), "expected 4294967295 more bytes"));
  EXPECT_TRUE(contains(refusal_of_value("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), "truncated"));
  EXPECT_TRUE(contains(refusal_of_value("\x8b\xff\xff\xff\xff"), "truncated"));
  EXPECT_TRUE(contains(refusal_of_value("\x95\xff\xff\xff\xff\xff\xff\xff\xff"), "truncated"));
  EXPECT_TRUE(contains(refusal_of_pickle("cos"), "truncated"));
}

TEST(MalformedPickle, CannotUseWhatIsNotThere) {
  for (const std::string opcode : {"", "a", "s", "R", "b", "Q", "q\1", "\x85", "\x86", "N\x86",
                                   "NN\x87", "(a", "N(s", "N(\x85t", "\x93", "]N(a"}) {
    EXPECT_TRUE(contains(refusal_of_value(opcode), "missing value")) << opcode;
  }
  for (const std::string opcode : {"t", "e", "u", "\x90"}) {
    EXPECT_TRUE(contains(refusal_of_value(opcode), "missing mark")) << opcode;
  }
  EXPECT_TRUE(contains(refusal_of_value("h\5"), "recalls object 5"));
  EXPECT_TRUE(contains(refusal_of_value("Nq\5h\6"), "recalls object 6"));
  EXPECT_TRUE(contains(refusal_of_value("j\xff\xff\xff\xff"), "recalls object 4294967295"));
  EXPECT_TRUE(contains(refusal_of_value("NN"), "left over"));
  EXPECT_TRUE(contains(refusal_of_value("N(N"), "left over"));
  EXPECT_TRUE(contains(refusal_of_pickle("N.N"), "left over"));
}

TEST(MalformedPickle, CannotAddToWhatIsNoContainer) {
  EXPECT_TRUE(contains(refusal_of_value("}Na"), "expected list, got dict"));
  EXPECT_TRUE(contains(refusal_of_value(")(Ne"), "expected list, got tuple"));
  EXPECT_TRUE(contains(refusal_of_value("]NNs"), "expected dict, got list"));
  EXPECT_TRUE(contains(refusal_of_value("}(NNNu"), "key without a value"));
  EXPECT_TRUE(contains(refusal_of_value("](N\x90"), "expected set, got list"));
  EXPECT_TRUE(contains(refusal_of_value("}}b"), "attributes"));
  EXPECT_TRUE(contains(refusal_of_value("ccollections\nOrderedDict\n)RNb"), "attributes"));
  EXPECT_TRUE(contains(refusal_of_value("ccollections\nOrderedDict\n)R}K\1Nsb"),
                       "attribute is not a string"));
}

TEST(MalformedPickle, RefusesValuesOutOfRange) {
  EXPECT_TRUE(contains(refusal_of_pickle("\x80\x06N."), "protocol: expected at most 5, got 6"));
  EXPECT_TRUE(contains(refusal_of_value("\x8a\x09\0\0\0\0\0\0\0\0\1"s), "integer is too large"));
  EXPECT_TRUE(contains(refusal_of_value("\x8a\x09\0\0\0\0\0\0\0\x80\0"s), "integer is too large"));
  EXPECT_EQ(read_back(archive_of_pickle(pickle_of("\x8a\0"s))).as_int(), 0);
  EXPECT_EQ(
      read_back(archive_of_pickle(pickle_of("\x8a\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")))
          .as_int(),
      -1);
  EXPECT_EQ(read_back(archive_of_pickle(pickle_of("\x8a\x02\0\x80"s))).as_int(), -32768);
  EXPECT_TRUE(contains(refusal_of_value("X\1\0\0\0\xff"s), "not UTF-8"));
  EXPECT_TRUE(contains(refusal_of_value("}]Ns"), "unhashable key: expected None"));
  EXPECT_TRUE(contains(refusal_of_value("}G\x7f\xf8\0\0\0\0\0\0Ns"s), "unhashable key"));
  EXPECT_TRUE(contains(refusal_of_value("ctorch\nFloatStorage\n"), "class or function as a value"));
  EXPECT_TRUE(contains(refusal_of_value("ctorch\nFloatStorage\n)R"), "storage itself"));
  EXPECT_TRUE(contains(refusal_of_value(pickled_storage()), "storage outside a tensor"));
}

TEST(MalformedPickle, TakesTheSameKeysForTheSameAsPython) {
  const PlainValue value =
      read_back(archive_of_pickle(pickle_of("}(K\1K\1\x88K\2G\x3f\xf0\0\0\0\0\0\0K\3u"s)));
  ASSERT_EQ(value.as_dict().items.size(), 1U);
  EXPECT_EQ(value.as_dict().items[0].key.as_int(), 1);
  EXPECT_EQ(value.as_dict().items[0].value.as_int(), 3);
}

TEST(MalformedPickle, ChecksWhatItWouldCall) {
  const std::string tensor_of = "K\0"s;
  EXPECT_TRUE(contains(refusal_of_value("ccollections\nOrderedDict\n]R"), "calls something"));
  EXPECT_TRUE(contains(refusal_of_value("N)R"), "calls something"));
  EXPECT_TRUE(
      contains(refusal_of_value("ccollections\nOrderedDict\n]\x85R"), "number of arguments"));
  EXPECT_TRUE(contains(refusal_of_value("c__builtin__\nset\nN\x85R"), "expected a list, got None"));
  EXPECT_TRUE(contains(
      refusal_of_value("c_codecs\nencode\n" + pickled_text("a") + pickled_text("utf8") + "\x86R"),
      "expected latin1"));
  EXPECT_TRUE(contains(refusal_of_value("c_codecs\nencode\n" + pickled_text("\xc4\x80") +
                                        pickled_text("latin1") + "\x86R"),
                       "character above 255"));
  EXPECT_TRUE(contains(refusal_of_value("ctorch\ndevice\n" + pickled_text("Cpu") + "\x85R"),
                       "invalid type"));
  EXPECT_TRUE(contains(refusal_of_value("ctorch\ndevice\n" + pickled_text("cuda") + "K\xc8\x86R"),
                       "invalid index"));
  EXPECT_TRUE(contains(refusal_of_value("ctorch\nSize\nN\x85R"), "not a tuple"));
  EXPECT_TRUE(
      contains(refusal_of_value("ctorch\nSize\n\x88\x85\x85R"), "expected an integer, got bool"));
}

TEST(MalformedPickle, CannotReachOutOfAStorage) {
  const auto with = [](const std::string& storage, const std::string& offset,
                       const std::string& sizes, const std::string& strides,
                       const std::string& grad = "\x89") {
    return refusal_of_value(pickled_tensor(storage, offset, sizes, strides, grad));
  };
  const std::string good = pickled_storage();
  EXPECT_TRUE(contains(with(good, "K\0"s, "K\7\x85", "K\1\x85"), "reaches beyond its storage"));
  EXPECT_TRUE(contains(with(good, "K\1", "K\6\x85", "K\1\x85"), "reaches beyond its storage"));
  EXPECT_TRUE(contains(with(good, "J\xff\xff\xff\xff", "K\1\x85", "K\1\x85"), "negative"));
  EXPECT_TRUE(contains(with(good, "K\0"s, "K\2\x85", "J\xff\xff\xff\xff\x85"), "negative"));
  EXPECT_TRUE(contains(with(good, "K\0"s, "K\2\x85", ")"), "number of strides"));
  EXPECT_TRUE(
      contains(with(good, "K\0"s, "(" + repeated("K\1", 65) + "t", "(" + repeated("K\1", 65) + "t"),
               "too many dimensions"));
  EXPECT_TRUE(
      contains(with(good, "K\0"s, "(" + repeated("N", 2000) + "t", ")"), "too many dimensions"));
  EXPECT_TRUE(contains(
      with(good, "K\0"s, "K\2\x85", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"), "too large"));
  EXPECT_TRUE(contains(with(good, "N", ")", ")"), "expected an integer, got None"));
  EXPECT_TRUE(contains(with(good, "K\0"s, ")", ")", "K\1"), "expected a bool, got int"));
  EXPECT_TRUE(contains(with("N", "K\0"s, ")", ")"), "expected a storage, got None"));
  EXPECT_TRUE(contains(with(pickled_storage("1"), "K\0"s, ")", ")"), "lacks data/1"));
  EXPECT_TRUE(contains(with(pickled_storage("0", "torch\nFloatStorage", 5), "K\0"s, ")", ")"),
                       "expected 20 bytes, got 24"));
  EXPECT_TRUE(contains(
      with(pickled_storage("0", "torch\nLongStorage", 3), "K\0"s, ")", ")", "\x88"), "gradient"));
  EXPECT_TRUE(contains(with(pickled_storage("0", "collections\nOrderedDict"), "K\0"s, ")", ")"),
                       "not a storage"));
  EXPECT_TRUE(contains(refusal_of_value("NQ"), "not a storage"));
  const std::string first = pickled_tensor(good, "K\0"s, ")", ")");
  const std::string second =
      pickled_tensor(pickled_storage("0", "torch\nIntStorage"), "K\0"s, ")", ")");
  EXPECT_TRUE(contains(refusal_of_value(first + second + "\x86"), "described in two ways"));
}

// --- Pickles that want all memory, all time or all of the stack -------------------------------------

TEST(HostilePickle, MayNotContainItself) {
  EXPECT_TRUE(contains(refusal_of_value("]q\1h\1a"), "contains itself"));
  EXPECT_TRUE(contains(refusal_of_value("}q\1K\1h\1s"), "contains itself"));
  EXPECT_TRUE(contains(refusal_of_value("]q\1h\1\x85"
                                        "a"),
                       "contains itself"));
  EXPECT_TRUE(
      contains(refusal_of_value("ccollections\nOrderedDict\n)Rq\1}" + pickled_text("a") + "h\1sb"),
               "contains itself"));
}

TEST(HostilePickle, MayBeNestedOnlySoDeep) {
  for (const int depth : {1000, 300'000}) {
    EXPECT_TRUE(contains(refusal_of_value("N" + repeated("\x85", depth)), "nested too deep"));
    EXPECT_TRUE(contains(refusal_of_value(repeated("]", depth) + "N" + repeated("a", depth)),
                         "nested too deep"));
    EXPECT_TRUE(contains(refusal_of_value(repeated("(", depth)), "missing value"));
    EXPECT_TRUE(contains(refusal_of_value(repeated("}N", depth) + "N" + repeated("s", depth)),
                         "nested too deep"));
  }
  const PlainValue deep = read_back(archive_of_pickle(pickle_of("N" + repeated("\x85", 999))));
  EXPECT_EQ(deep.as_tuple().items.size(), 1U);
}

TEST(HostilePickle, MayNotMultiplyItself) {
  // Each list holds the previous one ten times: 10^30 values in 800 bytes.
  std::string lists = "(N";
  std::string tuples = "(N";
  for (int i = 0; i < 30; ++i) {
    lists += "q\1](" + repeated("h\1", 10) + "e";
    tuples += "q\1(" + repeated("h\1", 10) + "t";
  }
  EXPECT_TRUE(contains(refusal_of_value(lists + "t"), "many times its size"));
  EXPECT_TRUE(contains(refusal_of_value("}" + tuples + "tNs"), "many times its size"));
  // A long text that every call copies.
  const std::string text = "X\0\0\1\0"s + std::string(1 << 16, 'x');
  const std::string call = "c_codecs\nencode\nq\1" + text + pickled_text("latin1") + "\x86q\2R";
  EXPECT_TRUE(contains(refusal_of_value("](" + call + repeated("h\1h\2R", 2000) + "e"),
                       "many times its size"));
}

// --- Archives -------------------------------------------------------------------------------------

TEST(MalformedArchive, IsRefusedAtEveryLength) {
  const std::string archive = written(PlainTensor::contiguous("U8", {5}, storage_of("hello")));
  for (std::size_t size = 0; size < archive.size(); ++size) {
    EXPECT_FALSE(error_of([&] { read_back(archive.substr(0, size)); }).empty());
  }
  EXPECT_FALSE(error_of([&] { read_back(archive + "x"); }).empty());
  EXPECT_FALSE(error_of([&] { read_back("x" + archive); }).empty());
}

TEST(MalformedArchive, NoticesEveryDamagedByteOfItsRecords) {
  const std::string archive = written(PlainTensor::contiguous("U8", {5}, storage_of("hello")));
  const std::size_t pickle = archive.find("\x80\x02");
  const std::size_t pickle_end = archive.find("PK\x07\x08");
  for (std::size_t i = pickle; i < pickle_end; ++i) {
    std::string damaged = archive;
    damaged[i] ^= 4;
    EXPECT_TRUE(contains(error_of([&] { read_back(damaged); }), "checksum of record data.pkl"));
  }
}

TEST(MalformedArchive, NoticesDamagedStoragesWhenTheyAreUsed) {
  std::string archive = written(PlainTensor::contiguous("U8", {5}, storage_of("hello")));
  archive[archive.find("hello")] = 'j';
  const PlainValue value = read_back(archive);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(contains(error_of([&] { value.as_tensor().storage->bytes(); }),
                         "checksum of record data/0"));
  }
  const PlainValue unchecked = read_back(archive, {.verify_checksums = false});
  EXPECT_EQ(text_of(unchecked.as_tensor().storage->bytes()), "jello");
}

TEST(MalformedArchive, SaysWhatIsWrongWithIt) {
  const std::string pickle = pickle_of("N");
  const auto refusal = [](const std::string& archive) {
    return error_of([&] { read_back(archive); });
  };
  const std::string good = archive_of({{"data.pkl", pickle}, {"version", "3\n"}});
  EXPECT_TRUE(read_back(good).is_none());
  EXPECT_TRUE(contains(refusal(archive_of({{"version", "3\n"}})), "data.pkl"));
  EXPECT_TRUE(contains(refusal(archive_of({{"data.pkl", pickle}})), "no version"));
  EXPECT_TRUE(contains(refusal(archive_of({{"data.pkl", pickle}, {"version", "11\n"}})),
                       "unknown version"));
  EXPECT_TRUE(contains(
      refusal(archive_of({{"data.pkl", pickle}, {"version", "3\n"}, {"byteorder", "big"}})),
      "expected little, got big"));
  EXPECT_TRUE(
      contains(refusal(archive_of({{"data.pkl", pickle}, {"data.pkl", pickle}, {"version", "3"}})),
               "two records named a/data.pkl"));
  EXPECT_TRUE(
      contains(error_of([&] { read_back(good, {.max_pickle_bytes = 2}); }), "max_pickle_bytes"));

  const auto with = [&](std::size_t place, const std::string& bytes) {
    std::string changed = good;
    changed.replace(place, bytes.size(), bytes);
    return refusal(changed);
  };
  const std::size_t central = good.find("PK\1\2");
  std::string compressed = good;
  compressed[8] = compressed[central + 10] = 8;
  EXPECT_TRUE(contains(refusal(compressed), "a/data.pkl with compression method 8"));
  const std::size_t second = good.find("PK\1\2", central + 1);
  const std::size_t end64 = good.find("PK\6\6");
  const std::size_t end = good.find("PK\5\6");
  EXPECT_TRUE(contains(with(central + 10, "\x08"), "does not match the directory"));
  EXPECT_TRUE(contains(with(central + 20, "\x01"), "two different sizes"));
  EXPECT_TRUE(contains(with(central + 8, "\x09"), "encrypted"));
  EXPECT_TRUE(contains(with(central + 42, "\xf0\xff\xff\x7f"), "lies outside"));
  EXPECT_TRUE(contains(with(6, "\x09"), "does not match the directory"));
  EXPECT_TRUE(contains(with(central + 20, "\xff\xff\xff\x7f\xff\xff\xff\x7f"), "lies outside"));
  EXPECT_TRUE(contains(with(central + 20, "\xff\xff\xff\xff\xff\xff\xff\xff"),
                       "damaged"));  // no extra field
  EXPECT_TRUE(contains(with(central + 20, "\x50\0\0\0\x50\0\0\0"s), "overlap"));
  EXPECT_TRUE(contains(with(central + 28, "\xff\xff"), "truncated"));
  EXPECT_TRUE(contains(with(second, "XX"), "directory is damaged"));
  EXPECT_TRUE(contains(with(central + 46, "b"), "does not match the directory"));
  EXPECT_TRUE(contains(with(end64 + 32, "\3"), "multi-part"));
  EXPECT_TRUE(contains(with(end64 + 24, "\3\0\0\0\0\0\0\0\3"s), "two directories differ"));
  EXPECT_TRUE(contains(with(end64 + 40, "\1"), "two directories differ"));
  EXPECT_TRUE(contains(with(end + 12, "\1"), "two directories differ"));
  EXPECT_TRUE(contains(with(end - 12, "\xff\xff\xff\xff\xff\xff\xff\xff"),
                       "64-bit directory lies outside"));
  EXPECT_TRUE(contains(with(end - 12, "\0"s), "not where it should be"));
  EXPECT_TRUE(contains(with(0, "\x50\x4b\x03\x05"), "a zip archive"));
}

// Records are used as they are: nothing is ever decompressed, and no size is believed.
TEST(MalformedArchive, CannotGrowBeyondItsFile) {
  const auto refusal = [](const char* seed) {
    return error_of([&] { read_torch_archive(std::string(ACCELERANT_FUZZ_CORPUS "/") + seed); });
  };
  EXPECT_TRUE(contains(refusal("bomb.pt"), "archive/data/0 with compression method 8"));
  EXPECT_TRUE(contains(refusal("zip64_size.pt"), "archive/data/0 lies outside the file"));
  EXPECT_FALSE(refusal("overlapping_records.pt").empty());
  EXPECT_NO_THROW(read_torch_archive(ACCELERANT_FUZZ_CORPUS "/plain_zip.pt"));
}

}  // namespace
