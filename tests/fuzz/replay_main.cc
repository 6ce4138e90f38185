// Runs a fuzz target once over every file below the folders given, and over each file with its end
// cut off at a few places. A crash is the failure.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kCuts = 16;

// Its own block of exactly this size, so that a sanitizer sees a read beyond it.
void RunOne(const std::string& bytes, size_t size) {
  const std::vector<uint8_t> input(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

size_t RunFolder(const std::filesystem::path& folder) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    RunOne(bytes, bytes.size());
    for (size_t cut = 1; cut <= std::min(kCuts, bytes.size()); ++cut) {
      RunOne(bytes, bytes.size() - bytes.size() * cut / (kCuts + 1) - 1);
    }
    ++files;
  }
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  size_t files = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::filesystem::is_directory(argv[i])) {
      files += RunFolder(argv[i]);
    } else {
      std::printf("%s is absent: passed over\n", argv[i]);
    }
  }
  std::printf("%zu files ran\n", files);
  return 0;
}
