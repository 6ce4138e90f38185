#include "tools/kvmesh/mesh_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvmesh::cli {

std::string MeshPath(const std::string& data_dir) {
  return data_dir + "/mesh.json";
}

Json ToJson(const MeshFile& mesh) {
  Json services = Json::array();
  for (const ServiceEntry& service : mesh.services) {
    services.push_back({{"name", service.name},
                        {"pid", service.pid},
                        {"address", service.address},
                        {"metrics", service.metrics},
                        {"layers", service.layers.empty() ? Json() : Json(service.layers)}});
  }
  return {{"router", mesh.router}, {"services", services}};
}

absl::Status WriteMesh(const std::string& data_dir, const MeshFile& mesh) {
  const std::string path = MeshPath(data_dir);
  const std::string temp = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream out(temp, std::ios::trunc);
    out << ToJson(mesh).dump(2) << "\n";
    out.flush();
    if (!out.good()) return absl::UnavailableError(absl::StrCat("cannot write ", temp));
  }
  std::error_code error;
  std::filesystem::rename(temp, path, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<MeshFile> ReadMesh(const std::string& data_dir) {
  const std::string path = MeshPath(data_dir);
  std::ifstream in(path);
  if (!in.good()) {
    return absl::NotFoundError(
        absl::StrCat("no mesh runs in ", data_dir, ": ", path, " is not there"));
  }
  const Json json = Json::parse(in, nullptr, false);
  try {
    MeshFile mesh;
    mesh.router = json.at("router").get<std::string>();
    for (const Json& entry : json.at("services")) {
      const Json& layers = entry.at("layers");
      mesh.services.push_back({.name = entry.at("name").get<std::string>(),
                               .pid = entry.at("pid").get<pid_t>(),
                               .address = entry.at("address").get<std::string>(),
                               .metrics = entry.at("metrics").get<std::string>(),
                               .layers = layers.is_null() ? "" : layers.get<std::string>()});
    }
    return mesh;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

void RemoveMesh(const std::string& data_dir) {
  std::error_code ignored;  // already gone is as good
  std::filesystem::remove(MeshPath(data_dir), ignored);
}

absl::StatusOr<std::unique_ptr<MeshLock>> MeshLock::Take(const std::string& data_dir) {
  const std::string path = data_dir + "/lock";
  // Without O_CLOEXEC: the services inherit it.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0644);  // NOLINT
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat("a mesh already runs in ", data_dir,
                                                      ": stop it with kvmesh down --data-dir ",
                                                      data_dir, ", or give another --data-dir"));
  }
  return std::unique_ptr<MeshLock>(new MeshLock(fd));
}

MeshLock::~MeshLock() {
  close(fd_);
}

}  // namespace kvmesh::cli
