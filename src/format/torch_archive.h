// Reads and writes the files of Python's torch.save: pytorch_model.bin, optimizer.bin,
// scheduler.bin, scaler.pt and the like. libtorch itself cannot read a state dict of Python, and
// what it writes is refused by torch.load(weights_only=True).
//
//   const PlainValue state = read_torch_archive("pytorch_model.bin");
//   for (const PlainItem& item : state.as_dict().items) {
//     const PlainTensor& weight = item.value.as_tensor();
//     use(item.key.as_string(), weight.shape, weight.storage->bytes());
//   }
//
//   PlainDict scaler;
//   scaler.set("scale", 65536.0);
//   write_torch_archive(std::move(scaler), sink);  // torch.load(weights_only=True) reads it
//
// Such a file is a zip archive that holds a pickle, which is a program for a small machine, and the
// storages of the tensors. Reading is safe for files of unknown origin: the pickle can only make
// the plain data of plain_value.h, names of functions and classes are compared with a fixed list,
// nothing is ever called, every length is compared with the file before it is used, and memory
// stays in proportion to the file. What is not in the list is an Error that names it.
//
// Storages are views of the mapped file; each keeps the file open as long as it is used. The
// file must not be changed in place meanwhile; replacing it by renaming another over it is fine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "accelerant/core/detail/byte_sink.h"
#include "format/plain_value.h"

namespace accelerant::format {

enum class ArchiveKind {
  python_state,        // torch.save of Python 1.6 or newer: read_torch_archive reads it
  torchscript_or_cpp,  // torch.jit.save, or torch::save of C++: read_module_archive reads its data
  legacy,              // torch.save of Python older than 1.6: has to be saved again
  not_an_archive,      // anything else
};

// Tells what a file is by its first bytes and its list of records. An Error only if it cannot be
// read.
ArchiveKind kind_of_archive(const std::string& path);

struct TorchReadOptions {
  // Compare the checksums of the pickle and, when its bytes are first asked for, of each storage.
  // Records that were saved without (torch.serialization.set_crc32_options(False)) are not
  // compared. Default: true. torch.load itself never compares them.
  bool verify_checksums = true;

  // The largest pickle that is read, in bytes. Reading one takes up to some hundred times its size
  // of memory if it was made for that. A tensor needs about 150 bytes. Default: 256 MiB.
  uint64_t max_pickle_bytes = uint64_t{256} << 20;

  // Arrays, numbers and types of numpy become None, so that the rest of a file can be read:
  // Accelerate's random_states_0.pkl has the state of numpy's generator in it. Default: false, they
  // are refused, as every other class that is not on the list.
  bool skip_numpy = false;
};

// What is in the file. Integers beyond 64 bits, sparse and quantised tensors, objects that contain
// themselves, and nesting deeper than 1000 are refused.
PlainValue read_torch_archive(const std::string& path, const TorchReadOptions& options = {});

// The same for an archive in memory. `owner` keeps the bytes alive, as each storage holds it; if it
// is empty, the caller does. `name` stands for the file in messages.
PlainValue read_torch_archive(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                              const std::string& name, const TorchReadOptions& options = {});

// What is in a file of torch::save of C++, or of torch.jit.save: the attributes of the module as
// nested dicts, parameters and buffers among them. The module's code is neither read nor run.
// Objects that save themselves by code of their own (__getstate__) are refused.
PlainValue read_module_archive(const std::string& path, const TorchReadOptions& options = {});
PlainValue read_module_archive(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                               const std::string& name, const TorchReadOptions& options = {});

struct TorchWriteOptions {
  // The folder that the records have inside the archive, without '/'. torch.save takes the name of
  // the file without its suffix; readers accept any. Default: "archive".
  std::string folder = "archive";
};

// Writes `value` so that torch.load(weights_only=True) of torch 2.0 and newer reads it, with
// mmap=True too. Each storage is written once, however many tensors share it. The same value gives
// the same bytes. Nothing is written if the value cannot be: a tensor that reaches out of its
// storage, a string that is not UTF-8, a key that Python cannot hash. A storage of a damaged file
// is only noticed when it is reached.
void write_torch_archive(const PlainValue& value, ByteSink& sink,
                         const TorchWriteOptions& options = {});

}  // namespace accelerant::format
