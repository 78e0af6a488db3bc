#include "pentatron/evaluation/tasks/read_tasks.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/nearest.h"
#include "pentatron/evaluation/tasks/parse_task.h"

namespace pentatron::evaluation {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxNested = 8, kMaxIncludes = 256;
constexpr size_t kMaxFileBytes = size_t{1} << 20;

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) require_descriptors(errno, file.native());
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

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

Document list_of(const Document& value) {
  return value.is_array() ? value : Document::array({value});
}

/// Files of one task that name a group, as lm-eval had them before there were tags.
void refuse_group_of_task(const Document& keys, const fs::path& path) {
  const bool of_task = keys.contains("dataset_path") || keys.contains("output_type") ||
                       keys.contains("doc_to_text") || keys.contains("class");
  if (!of_task || !keys.contains("task") || !keys["task"].is_string()) return;
  raise<ConfigError>("{}: group: {} makes the file a group of tasks, but it has the keys of a "
                     "task\n  try: tag: {} in place of group: {}",
                     path.string(), keys["group"].dump(), keys["group"].dump(),
                     keys["group"].dump());
}

/// What has a name: a file, or a member of a group in it.
struct Entry {
  fs::path file;
  bool own = false; ///< comes with pentatron
  Document member;  ///< null: the file
};

class Loader {
 public:
  explicit Loader(const TaskSources& sources) : sources_(sources) {}

  TaskList load() {
    const Document none = Document::object();
    for (const std::string& name : sources_.names) {
      if (!is_file_name(name)) {
        for (const Entry& entry : named(name, {})) add(entry, none);
        continue;
      }
      if (std::error_code error; !fs::exists(name, error))
        raise<DataError>("the task file {} does not exist\n  try: the path of a YAML file, or one "
                         "of the names {}",
                         name, fmt::join(task_names(), ", "));
      add({.file = name}, none);
    }
    return std::move(list_);
  }

 private:
  /// The tasks, the group, or the tasks with the tag of this name: beside the file that names it,
  /// or built in. `from` is null for a name of the command.
  std::vector<Entry> named(const std::string& name, std::optional<Entry> from) {
    std::vector<Entry> found = find(name, from);
    if (!found.empty()) return found;
    const std::vector<std::string> names = task_names();
    std::vector<std::string> all = names;
    if (from)
      for (const auto& [other, entries] : index(from->file.parent_path(), from->own))
        all.push_back(other);
    for (const auto& [file, error] : broken_) // the file that has the name may be one of them
      if (read_text(file).find(name) != std::string::npos) throw error;
    if (!task_folder().empty())
      for (const auto& [other, entries] : index(task_folder(), true)) all.push_back(other);
    const std::string where = from ? from->file.string() + ": " : "", near = nearest(name, all);
    raise<ConfigError>("{}there is no task {}\n  try: {}", where, name,
                       !near.empty()   ? near
                       : names.empty() ? "the path of a YAML file"
                                       : fmt::format("the path of a YAML file, or one of {}",
                                                     fmt::join(names, ", ")));
  }

  std::vector<Entry> find(const std::string& name, const std::optional<Entry>& from) {
    if (from) {
      const bool path = is_file_name(name);
      const fs::path file = beside(from->file, path ? name : name + ".yaml");
      if (is_file(file) && (path || !fs::equivalent(file, from->file)))
        return {{.file = file, .own = from->own}};
      if (path) return {};
      const auto& others = index(from->file.parent_path(), from->own);
      if (const auto found = others.find(name); found != others.end()) return found->second;
    }
    if (task_folder().empty()) return {};
    if (const fs::path file = task_folder() / (name + ".yaml"); is_file(file))
      return {{.file = file, .own = true}};
    const auto& own = index(task_folder(), true);
    const auto found = own.find(name);
    return found == own.end() ? std::vector<Entry>() : found->second;
  }

  /// The names that the task files of a folder give: to a task, a group and its members, and the
  /// tags of tasks.
  const std::map<std::string, std::vector<Entry>>& index(const fs::path& folder, bool own) {
    const auto [place, is_new] = indices_.try_emplace(folder);
    if (!is_new) return place->second;
    std::map<std::string, std::vector<Entry>> names, tags;
    std::vector<fs::path> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, error))
      if (entry.path().extension() == ".yaml") files.push_back(folder / entry.path().filename());
    std::ranges::sort(files);
    warns_ = false;
    for (const fs::path& file : files) {
      try {
        const Document keys = resolved({.file = file, .own = own}, read(file), {});
        note(keys, {.file = file, .own = own}, names, tags);
      } catch (const ConfigError& error) { // it matters only if it is named
        broken_.emplace_back(file, error);
      } catch (const DataError&) {
      }
    }
    warns_ = true;
    for (auto& [tag, tasks] : tags) names.emplace(tag, std::move(tasks));
    return place->second = std::move(names);
  }

  static void note(const Document& keys, const Entry& entry,
                   std::map<std::string, std::vector<Entry>>& names,
                   std::map<std::string, std::vector<Entry>>& tags) {
    const bool group = keys.contains("group");
    const char* const key = group ? "group" : "task";
    if (keys.contains(key) && keys[key].is_string())
      names.emplace(keys[key].get<std::string>(), std::vector<Entry>{entry});
    if (group && keys.contains("task"))
      for (const Document& member : list_of(keys["task"]))
        if (member.is_object() && (member.contains("include") || member.contains("group")))
          note(member, {.file = entry.file, .own = entry.own, .member = member}, names, tags);
    if (!group && keys.contains("tag"))
      for (const Document& tag : list_of(keys["tag"]))
        if (tag.is_string()) tags[tag.get<std::string>()].push_back(entry);
  }

  Document read(const fs::path& file) const {
    return read_task_yaml(read_text(file), file, warns_);
  }

  /// The name of what the entry is, with `overrides` in place of keys of its tasks.
  std::string add(const Entry& entry, const Document& overrides) {
    const Document keys = entry.member.is_null() ? read(entry.file) : entry.member;
    return add(resolved(entry, keys, {}), entry, overrides);
  }

  /// With what it includes; its own keys win. Paths of data become those of the file that has them.
  Document resolved(const Entry& entry, Document keys, std::vector<fs::path> open) {
    if (open.empty()) includes_ = 0;
    const bool nested = open.size() > kMaxNested;
    if (nested || includes_++ > kMaxIncludes)
      raise<ConfigError>("{}: include leads to more than {} files {}\n  try: fewer files",
                         entry.file.string(), nested ? kMaxNested : kMaxIncludes,
                         nested ? "one inside another" : "in all");
    place_data(entry, keys);
    if (!keys.contains("include")) return keys;
    if (entry.member.is_null()) open.push_back(fs::weakly_canonical(entry.file));
    Document all = Document::object();
    for (const Document& name : list_of(keys["include"])) {
      if (!name.is_string())
        raise<ConfigError>("{}: include: {} is not a file\n  try: include: base.yaml",
                           entry.file.string(), name.dump());
      const fs::path other = beside(entry.file, name.get<std::string>());
      if (!is_file(other))
        raise<DataError>("{}: include: {} does not exist\n  try: a path that begins in the folder "
                         "of {}",
                         entry.file.string(), other.string(), entry.file.string());
      if (std::ranges::find(open, fs::weakly_canonical(other)) != open.end())
        raise<ConfigError>("{}: include: {} leads back to the file itself\n  try: remove this "
                           "include",
                           entry.file.string(), other.string());
      all.update(resolved({.file = other, .own = entry.own}, read(other), open));
    }
    all.update(keys);
    return all;
  }

  void place_data(const Entry& entry, Document& keys) const {
    if (!keys.contains("dataset_kwargs") || !keys["dataset_kwargs"].is_object()) return;
    fs::path base = entry.own ? fs::path() : entry.file.parent_path();
    if (!sources_.data_path.empty()) base = sources_.data_path;
    if (const Document& kwargs = keys["dataset_kwargs"];
        kwargs.contains("data_dir") && kwargs["data_dir"].is_string())
      base /= kwargs["data_dir"].get<std::string>();
    const std::function<void(Document&)> place = [&](Document& value) {
      if (value.is_structured())
        for (Document& item : value) place(item);
      else if (value.is_string() && value != "" && !is_url(value.get<std::string>()))
        value = (base / value.get<std::string>()).lexically_normal().string();
    };
    for (const char* key : {"data_files", "label_files"})
      if (keys["dataset_kwargs"].contains(key)) place(keys["dataset_kwargs"][key]);
  }

  std::string add(Document keys, const Entry& entry, const Document& overrides) {
    if (keys.contains("group")) return add_group(keys, entry, overrides);
    keys.update(overrides);
    Task task = parse_task(keys, entry.file);
    std::string name = task.name;
    const auto [earlier, is_new] = tasks_.emplace(name, std::pair{entry.file, keys});
    const auto& [file, earlier_keys] = earlier->second;
    if (!is_new && !fs::equivalent(file, entry.file))
      raise<ConfigError>("{} and {} both define the task {}\n  try: task: {}_2 in one of them",
                         file.string(), entry.file.string(), name, name);
    if (!is_new && earlier_keys != keys)
      raise<ConfigError>("the task {} is used twice, with different settings\n  try: a task file "
                         "with include: {} and task: {}_2 for one of them",
                         name, file.filename().string(), name);
    if (is_new) list_.tasks.push_back(std::move(task));
    return name;
  }

  std::string add_group(const Document& keys, const Entry& entry, const Document& overrides) {
    refuse_group_of_task(keys, entry.file);
    Document more = Document::object(); // keys of the tasks of the group
    Group group = parse_group(keys, entry.file, more);
    more.update(overrides);
    if (!open_groups_.insert(group.name).second)
      raise<ConfigError>("{}: the group {} contains itself\n  try: a group without it",
                         entry.file.string(), group.name);
    for (const Document& member :
         keys.contains("task") ? list_of(keys["task"]) : Document::array()) {
      for (std::string& name : add_member(member, entry, more))
        if (std::ranges::find(group.members, name) == group.members.end())
          group.members.push_back(std::move(name));
    }
    if (group.members.empty())
      raise<ConfigError>("{}: the group {} has no tasks\n  try: task: [NAME]", entry.file.string(),
                         group.name);
    open_groups_.erase(group.name);
    std::string name = group.name;
    const auto [earlier, is_new] = groups_.emplace(name, group.members);
    if (!is_new && earlier->second != group.members)
      raise<ConfigError>("{}: there is another group {} with other tasks\n  try: group: {}_2",
                         entry.file.string(), name, name);
    if (is_new) list_.groups.push_back(std::move(group));
    return name;
  }

  /// A name; a name with keys that replace those of its tasks; or a task or a group in full.
  std::vector<std::string> add_member(const Document& member, const Entry& from,
                                      Document overrides) {
    if (!member.is_string() && !member.is_object())
      raise<ConfigError>("{}: task: {} is not a task of a group\n  try: the name of a task, or its "
                         "keys",
                         from.file.string(), member.dump());
    if (member.is_object() && !member.contains("task") && !member.contains("group"))
      raise<ConfigError>("{}: a member of the group has neither the key task nor group\n  try: "
                         "task: NAME",
                         from.file.string());
    std::vector<Entry> entries;
    if (member.is_string()) {
      entries = named(member.get<std::string>(), from);
    } else {
      const bool in_full =
          member.contains("include") || (member.contains("group") && member.contains("task"));
      const char* const key = member.contains("group") ? "group" : "task";
      const bool name = member.contains(key) && member[key].is_string();
      if (!in_full && name) {
        const std::string text = member[key].get<std::string>();
        entries = member.contains("dataset_path") ? find(text, from) : named(text, from);
      }
      const Entry itself{.file = from.file, .own = from.own, .member = member};
      if (entries.empty()) {
        entries = {itself};
      } else {
        Document own = member;
        place_data(itself, own);
        own.erase(key);
        overrides.update(own);
      }
    }
    std::vector<std::string> names;
    for (const Entry& entry : entries) names.push_back(add(entry, overrides));
    return names;
  }

  const TaskSources& sources_;
  TaskList list_;
  std::map<std::string, std::pair<fs::path, Document>> tasks_; ///< by name
  std::map<std::string, std::vector<std::string>> groups_;     ///< their members
  std::map<fs::path, std::map<std::string, std::vector<Entry>>> indices_;
  std::vector<std::pair<fs::path, ConfigError>> broken_; ///< files of indices_
  std::set<std::string> open_groups_;
  bool warns_ = true;
  size_t includes_ = 0; ///< of one file
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
