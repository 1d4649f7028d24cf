#include <format/torch_archive.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "format/archive_helpers.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::format;

// --- Values ---------------------------------------------------------------------------------------

TEST(PlainValue, TakesNumbersOfAllTypes) {
  EXPECT_EQ(PlainValue(true).as_bool(), true);
  EXPECT_EQ(PlainValue(3).as_int(), 3);
  EXPECT_EQ(PlainValue(uint8_t{200}).as_int(), 200);
  EXPECT_EQ(PlainValue(std::size_t{7}).as_int(), 7);
  EXPECT_EQ(PlainValue(1.5F).as_real(), 1.5);
  EXPECT_EQ(PlainValue(2).as_real(), 2.0);
  EXPECT_EQ(PlainValue("text").as_string(), "text");
  EXPECT_TRUE(PlainValue().is_none());
  EXPECT_TRUE(contains(error_of([] { PlainValue(std::numeric_limits<uint64_t>::max()); }),
                       "18446744073709551615"));
}

TEST(PlainValue, SaysWhatItIsInsteadOfWhatWasAskedFor) {
  EXPECT_TRUE(contains(error_of([] { PlainValue("x").as_int(); }), "expected int, got str"));
  EXPECT_TRUE(contains(error_of([] { PlainValue(1).as_bool(); }), "expected bool, got int"));
  PlainDict dict;
  dict.set("scale", 2.0);
  dict.set("scale", 4.0);
  EXPECT_EQ(dict.items.size(), 1U);
  const PlainValue value = dict;
  EXPECT_EQ(value.at("scale").as_real(), 4.0);
  EXPECT_TRUE(contains(error_of([&] { value.at("step"); }), "expected 'step', got 'scale'"));
}

TEST(PlainTensor, GivesItsElementsInRowMajorOrder) {
  PlainTensor tensor = PlainTensor::contiguous("U8", {2, 3}, storage_of("abcdef"));
  EXPECT_EQ(rows_of(tensor), "abcdef");
  tensor.shape = {3, 2};
  tensor.strides = {1, 3};
  EXPECT_EQ(rows_of(tensor), "adbecf");
  tensor.storage_offset = 1;
  tensor.shape = {2, 1, 2};
  tensor.strides = {3, std::numeric_limits<int64_t>::max(),
                    0};  // the stride of a dimension of size 1 is not used
  EXPECT_EQ(rows_of(tensor), "bbee");
  tensor.shape = {0, 5};
  tensor.strides = {1, 1};
  EXPECT_EQ(rows_of(tensor), "");
}

TEST(PlainTensor, IsRefusedWhereItDoesNotFitItsStorage) {
  const auto storage = storage_of("abcdefgh");
  const auto refusal = [&](PlainTensor tensor) {
    tensor.storage = storage;
    return error_of([&] { check_tensor(tensor, "it"); });
  };
  constexpr int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(contains(refusal({.dtype = "U8", .shape = {9}, .strides = {1}}), "reaches beyond"));
  EXPECT_TRUE(contains(refusal({.dtype = "F32", .shape = {3}, .strides = {1}}), "reaches beyond"));
  EXPECT_TRUE(contains(refusal({.dtype = "U8", .shape = {4}, .strides = {1}, .storage_offset = 5}),
                       "reaches beyond"));
  EXPECT_TRUE(contains(refusal({.dtype = "U8", .shape = {2}, .strides = {-1}}), "negative"));
  EXPECT_TRUE(contains(refusal({.dtype = "U8", .shape = {-2}, .strides = {1}}), "negative"));
  EXPECT_TRUE(contains(refusal({.dtype = "U8", .shape = {2}}), "number of strides"));
  EXPECT_TRUE(contains(refusal({.dtype = "U8", .shape = {2}, .strides = {huge}}), "too large"));
  EXPECT_TRUE(
      contains(refusal({.dtype = "U8", .shape = {huge, huge}, .strides = {0, 0}}), "too large"));
  EXPECT_TRUE(contains(refusal({.dtype = "U8", .shape = {huge, huge, 0}, .strides = {0, 0, 0}}),
                       "too large"));
  EXPECT_TRUE(contains(refusal({.dtype = "F33", .shape = {1}, .strides = {1}}), "unknown dtype"));
  EXPECT_TRUE(contains(refusal({.dtype = "I64", .requires_grad = true}), "gradient"));
  EXPECT_TRUE(contains(error_of([] { check_tensor({}, "it"); }), "no storage"));
  check_tensor(
      {.dtype = "U8", .shape = {1 << 20}, .strides = {0}, .storage_offset = 7, .storage = storage},
      "it");
}

// --- Round trips ----------------------------------------------------------------------------------

TEST(TorchArchive, GivesBackEveryKindOfValue) {
  PlainDict dict{.kind = PlainDictKind::ordered};
  dict.set("none", {});
  dict.set("true", true);
  dict.set("ints", PlainList{0, 255, 256, 65535, 65536, -1, std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max()});
  dict.set("floats", PlainTuple{.items = {0.1, -0.0, INFINITY}});
  dict.set("text", "\xc3\xa4 \xed\xa0\x80");
  dict.set("bytes", PlainBytes{.bytes = std::string("\0\xff", 2)});
  dict.set("array", PlainBytes{.bytes = "", .is_bytearray = true});
  dict.set("size", PlainTuple{.items = {2, 3}, .is_size = true});
  dict.set("set", PlainSet{.items = {1, "a"}});
  dict.set("dtype", PlainDtype{.name = "BF16"});
  dict.set("device", PlainDevice{.name = "cuda:1"});
  dict.items.push_back({.key = 5, .value = PlainDict{.kind = PlainDictKind::counter}});
  dict.items.push_back({.key = PlainTuple{.items = {1, "x"}}, .value = PlainList{}});
  PlainDict metadata;
  metadata.set("version", 2);
  dict.attributes.push_back({.key = "_metadata", .value = metadata});

  const PlainValue back = read_back(written(dict));
  EXPECT_EQ(back.as_dict().kind, PlainDictKind::ordered);
  EXPECT_TRUE(back.at("none").is_none());
  EXPECT_EQ(back.at("true").as_bool(), true);
  const PlainList& ints = back.at("ints").as_list();
  for (std::size_t i = 0; i < ints.size(); ++i) {
    EXPECT_EQ(ints[i].as_int(), dict.find("ints")->as_list()[i].as_int());
  }
  EXPECT_EQ(back.at("floats").as_tuple().items[0].as_real(), 0.1);
  EXPECT_TRUE(std::signbit(back.at("floats").as_tuple().items[1].as_real()));
  EXPECT_EQ(back.at("text").as_string(), "\xc3\xa4 \xed\xa0\x80");
  EXPECT_EQ(std::get<PlainBytes>(back.at("bytes").content()).bytes, std::string("\0\xff", 2));
  EXPECT_TRUE(std::get<PlainBytes>(back.at("array").content()).is_bytearray);
  EXPECT_TRUE(back.at("size").as_tuple().is_size);
  EXPECT_EQ(std::get<PlainSet>(back.at("set").content()).items.size(), 2U);
  EXPECT_EQ(std::get<PlainDtype>(back.at("dtype").content()).name, "BF16");
  EXPECT_EQ(std::get<PlainDevice>(back.at("device").content()).name, "cuda:1");
  EXPECT_EQ(back.as_dict().items[11].key.as_int(), 5);
  EXPECT_EQ(back.as_dict().items[11].value.as_dict().kind, PlainDictKind::counter);
  EXPECT_EQ(back.as_dict().items[12].key.as_tuple().items[1].as_string(), "x");
  EXPECT_EQ(back.as_dict().attributes.at(0).value.at("version").as_int(), 2);
  EXPECT_EQ(written(back), written(dict));
}

TEST(TorchArchive, KeepsTiedWeightsTiedAndWritesThemOnce) {
  const auto storage = storage_of(std::string(4096, 'w'));
  PlainTensor weight = PlainTensor::contiguous("F32", {1024}, storage);
  weight.is_parameter = weight.requires_grad = true;
  PlainTensor part = PlainTensor::contiguous("F32", {4}, storage);
  part.storage_offset = 10;
  PlainDict dict;
  dict.set("encoder", weight);
  dict.set("decoder", part);
  dict.set("other", PlainTensor::contiguous("U16", {2}, storage_of("wxyz")));

  const std::string archive = written(dict);
  EXPECT_LT(archive.size(), 2U * 4096U);
  const PlainValue back = read_back(archive);
  const PlainTensor& encoder = back.at("encoder").as_tensor();
  const PlainTensor& decoder = back.at("decoder").as_tensor();
  EXPECT_EQ(encoder.storage, decoder.storage);
  EXPECT_NE(encoder.storage, back.at("other").as_tensor().storage);
  EXPECT_TRUE(encoder.is_parameter && encoder.requires_grad);
  EXPECT_FALSE(decoder.is_parameter || decoder.requires_grad);
  EXPECT_EQ(decoder.storage_offset, 10);
  EXPECT_EQ(encoder.storage->key(), "0");
  EXPECT_EQ(encoder.storage->location(), "cpu");
  EXPECT_EQ(back.at("other").as_tensor().dtype, "U16");
  EXPECT_EQ(text_of(back.at("other").as_tensor().storage->bytes()), "wxyz");
}

TEST(TorchArchive, AlignsDataTo64Bytes) {
  PlainList tensors;
  for (int64_t i = 0; i < 5; ++i) {
    const auto size = static_cast<std::size_t>(i * 7);
    tensors.push_back(PlainTensor::contiguous("U8", {i * 7}, storage_of(std::string(size, 'x'))));
  }
  const auto archive = std::make_shared<const std::string>(written(tensors));
  const auto bytes = std::as_bytes(std::span(*archive));
  const PlainValue back = read_torch_archive(bytes, archive, "test.pt");
  for (const PlainValue& value : back.as_list()) {
    EXPECT_EQ((value.as_tensor().storage->bytes().data() - bytes.data()) % 64, 0);
  }
}

TEST(TorchArchive, KeepsTheFileMappedWhileAStorageIsUsed) {
  const TempFolder folder;
  const std::string path =
      folder.write("model.bin", written(PlainTensor::contiguous("U8", {5}, storage_of("hello"))));
  std::shared_ptr<const PlainStorage> storage;
  {
    const PlainValue value = read_torch_archive(path);
    storage = value.as_tensor().storage;
  }
  run_in_shell("rm '" + path + "'");
  EXPECT_EQ(text_of(storage->bytes()), "hello");
}

TEST(TorchArchive, TakesAnyFolderName) {
  StringSink sink;
  write_torch_archive(PlainValue(7), sink, {.folder = "checkpoint 1"});
  EXPECT_EQ(read_back(sink.text).as_int(), 7);
  for (const std::string folder : {"", "a/b"}) {
    EXPECT_TRUE(
        contains(error_of([&] { write_torch_archive(1, sink, {.folder = folder}); }), "folder"));
  }
}

// --- What cannot be written -----------------------------------------------------------------------

TEST(TorchArchive, WritesNothingOfAValueThatCannotBeRead) {
  const auto refusal = [](const PlainValue& value) {
    StringSink sink;
    const std::string message = error_of([&] { write_torch_archive(value, sink); });
    EXPECT_TRUE(sink.text.empty());
    return message;
  };
  const auto dict_with = [](std::vector<PlainItem> items) {
    return PlainDict{.items = std::move(items)};
  };
  EXPECT_TRUE(contains(refusal(dict_with({{.key = 1}, {.key = true}})), "same key twice"));
  EXPECT_TRUE(contains(refusal(dict_with({{.key = 1}, {.key = 1.0}})), "same key twice"));
  EXPECT_TRUE(contains(refusal(dict_with({{.key = NAN}})), "unhashable key"));
  EXPECT_TRUE(contains(refusal(dict_with({{.key = PlainList{}}})), "unhashable key"));
  EXPECT_TRUE(contains(refusal(dict_with({{.key = PlainTuple{.items = {PlainList{}}}}})),
                       "unhashable key"));
  EXPECT_TRUE(contains(refusal(PlainSet{.items = {2, 2.0}}), "same item twice"));
  EXPECT_TRUE(contains(refusal("\xff"), "not UTF-8"));
  EXPECT_TRUE(contains(refusal("\xc0\x80"), "not UTF-8"));
  EXPECT_TRUE(contains(refusal(PlainTuple{.items = {1.5}, .is_size = true}), "torch.Size"));
  EXPECT_TRUE(contains(refusal(PlainDtype{.name = "float32"}), "unknown dtype"));
  EXPECT_TRUE(contains(refusal(PlainDevice{.name = "cuda:"}), "invalid device"));
  EXPECT_TRUE(contains(refusal(PlainDict{.attributes = {{.key = "a"}}}), "not ordered"));
  EXPECT_TRUE(
      contains(refusal(PlainTensor{.shape = {3}, .strides = {1}, .storage = storage_of("abcd")}),
               "reaches beyond"));
  EXPECT_TRUE(contains(refusal(PlainTensor{.storage = storage_of("abcde")}), "not a multiple"));
  PlainTensor leaf = PlainTensor::contiguous("F8_E4M3", {4}, storage_of("abcd"));
  leaf.requires_grad = true;
  EXPECT_TRUE(contains(refusal(leaf), "torch.load cannot read"));
  const auto shared = storage_of("abcd");
  EXPECT_TRUE(contains(refusal(PlainList{PlainTensor::contiguous("F32", {1}, shared),
                                         PlainTensor::contiguous("I32", {1}, shared)}),
                       "different types"));
  PlainValue deep;
  for (int i = 0; i < 1000; ++i) deep = PlainList{std::move(deep)};
  EXPECT_TRUE(contains(refusal(deep), "nested too deep"));
}

// --- Kinds of files -------------------------------------------------------------------------------

TEST(TorchArchive, TellsWhatAFileIs) {
  using namespace std::string_literals;
  const TempFolder folder;
  const std::string legacy = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."s;
  const std::string script = archive_of(
      {{"data.pkl", pickle_of("N")}, {"code/x.py", ""}, {"constants.pkl", pickle_of(")")}});
  EXPECT_EQ(kind_of_archive(folder.write("a", written(1))), ArchiveKind::python_state);
  EXPECT_EQ(kind_of_archive(folder.write("b", script)), ArchiveKind::torchscript_or_cpp);
  EXPECT_EQ(kind_of_archive(folder.write("c", legacy)), ArchiveKind::legacy);
  EXPECT_EQ(kind_of_archive(folder.write("d", "")), ArchiveKind::not_an_archive);
  EXPECT_EQ(kind_of_archive(folder.write("e", pickle_of("N"))), ArchiveKind::not_an_archive);
  EXPECT_EQ(kind_of_archive(folder.write("f", archive_of({{"x", "y"}}))),
            ArchiveKind::not_an_archive);
  EXPECT_TRUE(
      contains(error_of([&] { kind_of_archive(folder.path("none")); }), "cannot be opened"));
  EXPECT_TRUE(contains(whole_error_of([&] { kind_of_archive(folder.path()); }), "regular file"));

  EXPECT_TRUE(
      contains(error_of([&] { read_torch_archive(folder.path("b")); }), "torch::jit::load"));
  EXPECT_TRUE(
      contains(error_of([&] { read_torch_archive(folder.path("c")); }), "torch.save(torch.load("));
  EXPECT_TRUE(contains(error_of([&] { read_torch_archive(folder.path("d")); }), "an empty file"));
  EXPECT_TRUE(contains(error_of([&] { read_torch_archive(folder.path("e")); }), "a zip archive"));
  EXPECT_TRUE(contains(error_of([&] { read_torch_archive(folder.path("f")); }), "no version"));
}

}  // namespace
