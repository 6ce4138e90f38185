// Where golden tests find their cases: the folder named by KVMESH_TEST_DATA, else tests/data.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kvmesh::testing {

inline std::filesystem::path TestDataRoot() {
  const char* root = std::getenv("KVMESH_TEST_DATA");
  return root != nullptr && root[0] != '\0' ? root : "tests/data";
}

// A kind of fixture whose folder is absent is named and passed over.
inline bool FolderIsAbsent(const std::filesystem::path& folder) {
  if (std::filesystem::is_directory(folder)) return false;
  std::printf("%s is absent: passed over\n", folder.c_str());
  return true;
}

// What lies in `folder`, sorted by name.
inline std::vector<std::filesystem::path> ListFolder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    entries.push_back(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

inline std::string ReadWholeFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace kvmesh::testing
