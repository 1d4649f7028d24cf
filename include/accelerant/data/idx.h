// Reads IDX files, the format of MNIST and its relatives: one array of numbers in a file.
//
//   at::Tensor images = accelerant::data::read_idx("train-images-idx3-ubyte.gz");
//
// The tensor owns its memory and lies on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace accelerant::data {

// Reads a plain or a gzip file; its first bytes tell which. The element types are those of the
// format: uint8, int8, int16, int32, float32, float64; any number of dimensions.
//
// Throws Error that names the file when it cannot be read, is no IDX file, holds fewer or more bytes
// than its header says, or fails its gzip checksum. Memory is taken as the data come in, so a damaged
// header cannot ask for more than the file holds.
at::Tensor read_idx(const std::string& path);

}  // namespace accelerant::data
