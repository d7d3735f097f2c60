// A program that carries out one launch: reads it from a file, runs it, writes the buffers back.
//
// Each buffer is an allocation of exactly its size, so AddressSanitizer sees every access outside, which
// it could not among torch's tensors. File: see sim_launch._Replay.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

struct Buffer {
  size_t bytes;
  char* data;
};

[[noreturn]] void give_up(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(2);
}

template <class T>
T read_value(FILE* file) {
  T value;
  if (fread(&value, sizeof value, 1, file) != 1) give_up("the launch file ends early");
  return value;
}

// An argument: 8 bytes of value, or a place in a buffer.
uint64_t read_argument(FILE* file, const std::vector<Buffer>& buffers) {
  int64_t buffer = read_value<int64_t>(file);
  uint64_t value = read_value<uint64_t>(file);
  return buffer < 0 ? value : reinterpret_cast<uint64_t>(buffers[static_cast<size_t>(buffer)].data) + value;
}

sim::LaunchShape read_shape(FILE* file) {
  sim::LaunchShape shape{};
  for (sim::Dim3* dim : {&shape.grid, &shape.block})
    for (unsigned* size : {&dim->x, &dim->y, &dim->z})
      *size = static_cast<unsigned>(read_value<uint64_t>(file));
  shape.shared_bytes = read_value<uint64_t>(file);
  shape.seed = read_value<uint64_t>(file);
  return shape;
}

}  // namespace

int main(int count, char** words) {
  FILE* file = count == 2 ? fopen(words[1], "r+b") : nullptr;
  if (!file) give_up("usage: replay FILE");
  sim::LaunchShape shape = read_shape(file);
  std::vector<Buffer> buffers(read_value<uint64_t>(file));
  for (Buffer& buffer : buffers) buffer = {read_value<uint64_t>(file), nullptr};
  for (Buffer& buffer : buffers) {
    void* data = nullptr;
    if (posix_memalign(&data, 16, buffer.bytes)) give_up("out of memory");
    buffer.data = static_cast<char*>(data);
    if (fread(buffer.data, 1, buffer.bytes, file) != buffer.bytes) give_up("the launch file ends early");
  }
  long after_buffers = ftell(file);
  std::vector<uint64_t> values(read_value<uint64_t>(file));
  for (uint64_t& value : values) value = read_argument(file, buffers);
  std::vector<void*> args;
  for (uint64_t& value : values) args.push_back(&value);
  if (const char* error = ENTRY(&shape, args.data())) give_up(error);

  for (const Buffer& buffer : buffers) after_buffers -= static_cast<long>(buffer.bytes);
  fseek(file, after_buffers, SEEK_SET);
  for (const Buffer& buffer : buffers)
    if (fwrite(buffer.data, 1, buffer.bytes, file) != buffer.bytes) give_up("cannot write the results");
  fclose(file);
  return 0;
}
