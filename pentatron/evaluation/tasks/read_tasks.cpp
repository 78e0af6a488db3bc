#include "pentatron/evaluation/tasks/read_tasks.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/evaluation/tasks/parse_task.h"

namespace pentatron::evaluation {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxIncludes = 8;
constexpr size_t kMaxFileBytes = size_t{1} << 20;

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || !fs::is_regular_file(file))
    raise<DataError>("the task file {} cannot be read\n  try: the path of a YAML file",
                     file.string());
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

bool is_file_name(const std::string& name) {
  return name.ends_with(".yaml") || name.ends_with(".yml") || name.find('/') != std::string::npos;
}

fs::path beside(const fs::path& file, const std::string& name) {
  return (file.parent_path() / name).lexically_normal();
}

class Loader {
 public:
  explicit Loader(const TaskSources& sources) : sources_(sources) {}

  TaskList load() {
    for (const std::string& name : sources_.names) {
      if (is_file_name(name)) {
        if (std::error_code error; !fs::exists(name, error))
          raise<DataError>(
              "the task file {} does not exist\n  try: the path of a YAML file, or one "
              "of the names {}",
              name, fmt::join(task_names(), ", "));
        file(name, false);
      } else {
        named(name);
      }
    }
    return std::move(list_);
  }

 private:
  void named(const std::string& name) {
    const fs::path file_of_name = task_folder() / (name + ".yaml");
    std::error_code error;
    if (!task_folder().empty() && fs::is_regular_file(file_of_name, error))
      return static_cast<void>(file(file_of_name, true));
    const std::vector<std::string> names = task_names();
    const std::string near = nearest(name, names);
    raise<ConfigError>("there is no task {}\n  try: {}", name,
                       !near.empty()   ? near
                       : names.empty() ? "the path of a YAML file"
                                       : fmt::format("the path of a YAML file, or one of {}",
                                                     fmt::join(names, ", ")));
  }

  /// The name of what the file holds.
  std::string file(const fs::path& path, bool own) {
    return add(resolved(path, read_task_yaml(read_text(path), path), own, 0), path, own);
  }

  /// With what it includes; its own keys win. Paths of data become those of the file that has them.
  Document resolved(const fs::path& path, Document keys, bool own, int depth) {
    if (depth > kMaxIncludes)
      raise<ConfigError>("{}: include is nested more than {} files deep\n  try: fewer files",
                         path.string(), kMaxIncludes);
    place_data(path, keys, own);
    if (!keys.contains("include")) return keys;
    Document all = Document::object();
    const Document include = keys["include"];
    for (const Document& name : include.is_array() ? include : Document::array({include})) {
      if (!name.is_string())
        raise<ConfigError>("{}: include: {} is not a file\n  try: include: base.yaml",
                           path.string(), name.dump());
      const fs::path other = beside(path, name.get<std::string>());
      all.update(resolved(other, read_task_yaml(read_text(other), other), own, depth + 1));
    }
    all.update(keys);
    return all;
  }

  void place_data(const fs::path& file, Document& keys, bool own) const {
    if (!keys.contains("dataset_kwargs") || !keys["dataset_kwargs"].is_object()) return;
    fs::path base = own ? fs::path() : file.parent_path();
    if (!sources_.data_path.empty()) base = sources_.data_path;
    if (const Document& kwargs = keys["dataset_kwargs"];
        kwargs.contains("data_dir") && kwargs["data_dir"].is_string())
      base /= kwargs["data_dir"].get<std::string>();
    const std::function<void(Document&)> place = [&](Document& value) {
      if (value.is_string())
        value = (base / value.get<std::string>()).lexically_normal().string();
      else
        for (Document& item : value) place(item);
    };
    for (const char* key : {"data_files", "label_files"})
      if (keys["dataset_kwargs"].contains(key)) place(keys["dataset_kwargs"][key]);
  }

  std::string add(const Document& keys, const fs::path& path, bool own) {
    if (keys.contains("group")) return add_group(keys, path, own);
    Task task = parse_task(keys, path);
    std::string name = task.name;
    const auto [earlier, is_new] = files_.emplace(name, path);
    if (!is_new && !fs::equivalent(earlier->second, path))
      raise<ConfigError>("{} and {} both define the task {}\n  try: task: {}_2 in one of them",
                         earlier->second.string(), path.string(), name, name);
    if (is_new) list_.tasks.push_back(std::move(task));
    return name;
  }

  std::string add_group(const Document& keys, const fs::path& path, bool own) {
    Group group = parse_group(keys, path);
    if (!open_groups_.insert(group.name).second)
      raise<ConfigError>("{}: the group {} contains itself\n  try: a group without it",
                         path.string(), group.name);
    const Document members = keys.contains("task") ? keys["task"] : Document::array();
    for (const Document& member : members.is_array() ? members : Document::array({members})) {
      if (member.is_string()) {
        const std::string name = member.get<std::string>();
        group.members.push_back(
            file(beside(path, is_file_name(name) ? name : name + ".yaml"), own));
      } else if (member.is_object()) {
        group.members.push_back(add(resolved(path, member, own, 0), path, own));
      } else {
        raise<ConfigError>("{}: task: {} is not a task of a group\n  try: the name of a task, or "
                           "its keys",
                           path.string(), member.dump());
      }
    }
    if (group.members.empty())
      raise<ConfigError>("{}: the group {} has no tasks\n  try: task: [NAME]", path.string(),
                         group.name);
    open_groups_.erase(group.name);
    std::string name = group.name;
    list_.groups.push_back(std::move(group));
    return name;
  }

  const TaskSources& sources_;
  TaskList list_;
  std::map<std::string, fs::path> files_; ///< of the tasks, by name
  std::set<std::string> open_groups_;
};

} // namespace

fs::path task_folder() {
  const auto search = [](fs::path folder) -> fs::path {
    std::error_code error;
    for (; !folder.empty(); folder = folder.parent_path()) {
      for (const char* place : {"examples/tasks", "share/pentatron/tasks"})
        if (fs::is_regular_file(folder / place / "hellaswag.yaml", error)) return folder / place;
      if (folder == folder.root_path()) break;
    }
    return {};
  };
  std::error_code error;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error)
    if (const fs::path found = search(program.parent_path()); !found.empty()) return found;
  return search(fs::current_path(error));
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(task_folder(), error))
    if (const fs::path& file = entry.path();
        file.extension() == ".yaml" && !file.stem().string().starts_with('_'))
      names.push_back(file.stem().string());
  std::ranges::sort(names);
  return names;
}

TaskList read_tasks(const TaskSources& sources) {
  return Loader(sources).load();
}

} // namespace pentatron::evaluation
