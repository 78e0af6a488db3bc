// Groups of tasks: what they may name, and what they give their tasks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/evaluation/tasks/small_task.h"

namespace pentatron::evaluation {
namespace {

using test::SmallTask;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names(const TaskList& list) {
  std::vector<std::string> names;
  for (const Task& task : list.tasks) names.push_back(task.name);
  return names;
}

TEST(TaskGroup, NamesBuiltInTasksAndGroups) {
  const SmallTask folder;
  folder.write("all.yaml", "group: all\ntask: [piqa, small, {group: mine, task: [boolq, "
                           "mmlu_anatomy]}]\n");
  const TaskList list = folder.list("all.yaml");
  EXPECT_THAT(names(list), ElementsAre("piqa", "small", "boolq", "mmlu_anatomy"));
  ASSERT_EQ(list.groups.size(), 2U);
  EXPECT_EQ(list.groups[0].name, "mine");
  EXPECT_THAT(list.groups[1].members, ElementsAre("piqa", "small", "mine"));
  EXPECT_EQ(list.tasks[0].file, task_folder() / "piqa.yaml");
  EXPECT_EQ(list.tasks[0].data.splits.at("validation")[0], "piqa/dev.jsonl");

  folder.write("other.yaml", "group: other\ntask: mmlu\n");
  const TaskList mmlu = folder.list("other.yaml");
  EXPECT_EQ(mmlu.tasks.size(), 57U);
  EXPECT_THAT(mmlu.groups.back().members, ElementsAre("mmlu"));
}

/// As lm-eval's --include_path, which precedes its own tasks.
TEST(TaskGroup, FilesBesideItPrecedeBuiltInTasks) {
  const SmallTask folder;
  folder.write("piqa.yaml", SmallTask::yaml({"task: piqa", "num_fewshot: 3"}));
  folder.write("all.yaml", "group: all\ntask: [piqa]\n");
  EXPECT_EQ(folder.list("all.yaml").tasks.at(0).num_fewshot, 3);
  folder.write("boolq.yaml", "group: mine\ntask: [boolq]\n"); // not the file itself
  EXPECT_EQ(folder.list("boolq.yaml").tasks.at(0).file, task_folder() / "boolq.yaml");
}

TEST(TaskGroup, NamesTasksAndTagsOfFilesBesideIt) {
  const SmallTask folder;
  folder.write("b.yaml", SmallTask::yaml({"task: second", "tag: [pair, other]"}));
  folder.write("base", SmallTask::yaml({"task:", "tag: pair"}));
  folder.write("a.yaml", "include: base\ntask: first\n");
  folder.write("broken.yaml", "task: [\n");
  folder.write("all.yaml", "group: all\ntask: [pair, second]\n");
  folder.write("group_of_tags.yaml", "group: tags\ntask: [{task: pair, num_fewshot: 2}]\n");
  const TaskList list = folder.list("all.yaml");
  EXPECT_THAT(names(list), ElementsAre("first", "second"));
  EXPECT_THAT(list.groups.at(0).members, ElementsAre("first", "second"));
  const TaskList tags = folder.list("group_of_tags.yaml");
  EXPECT_THAT(names(tags), ElementsAre("first", "second"));
  EXPECT_EQ(tags.tasks[1].num_fewshot, 2);
}

TEST(TaskGroup, MembersAreNamedByTheCommandToo) {
  const TaskList list = read_tasks({.names = {"mmlu_anatomy"}, .data_path = {}});
  EXPECT_THAT(names(list), ElementsAre("mmlu_anatomy"));
  EXPECT_EQ(read_tasks({.names = {"mmlu_stem"}, .data_path = {}}).groups.size(), 1U);
}

/// As in lm-eval: keys of a member precede those of the group, which precede those of the task.
TEST(TaskGroup, GivesItsTasksKeys) {
  const SmallTask folder;
  folder.write("all.yaml", "group: all\nnum_fewshot: 2\nmetric_list: [{metric: mcc}]\n"
                           "task: [{task: small, num_fewshot: 1, task_alias: s}, piqa]\n");
  const TaskList list = folder.list("all.yaml");
  ASSERT_EQ(list.tasks.size(), 2U);
  EXPECT_EQ(list.tasks[0].num_fewshot, 1);
  EXPECT_EQ(list.tasks[0].alias, "s");
  EXPECT_TRUE(list.tasks[0].has_metric("mcc"));
  EXPECT_EQ(list.tasks[1].num_fewshot, 2);
  EXPECT_EQ(list.tasks[0].data.splits.at("test")[0], folder.path("test.jsonl"));
  folder.write("data.yaml", "group: all\ntask: [{task: piqa, dataset_kwargs: {data_files: "
                            "{validation: mine.jsonl, train: t.jsonl}}}]\n");
  EXPECT_EQ(folder.list("data.yaml").tasks.at(0).data.splits.at("validation")[0],
            folder.path("mine.jsonl"));
}

TEST(TaskGroup, GivesKeysToTheTasksOfItsGroups) {
  const SmallTask folder;
  folder.write("inner.yaml", "group: inner\nnum_fewshot: 1\ntask: [small]\n");
  folder.write("all.yaml", "group: all\ntask: [{group: inner, num_fewshot: 4}]\n");
  EXPECT_EQ(folder.list("all.yaml").tasks.at(0).num_fewshot, 4);
  EXPECT_EQ(folder.list("inner.yaml").tasks.at(0).num_fewshot, 1);
}

TEST(TaskGroup, MayBeNamedTwice) {
  const SmallTask folder;
  folder.write("inner.yaml", "group: inner\ntask: [small]\n");
  folder.write("all.yaml", "group: all\ntask: [inner, inner]\n");
  const TaskList list =
      read_tasks({.names = {folder.path("all.yaml").string(), folder.path("inner.yaml").string()}});
  EXPECT_EQ(list.groups.size(), 2U);
  EXPECT_EQ(list.tasks.size(), 1U);
}

TEST(TaskGroup, WhatCannotBeAGroupIsTold) {
  const SmallTask folder;
  const auto error = [&](const std::string& text) {
    folder.write("all.yaml", text);
    return folder.list_error("all.yaml");
  };
  EXPECT_THAT(error("group: all\ntask: [smal]\n"),
              HasSubstr("all.yaml: there is no task smal\n  try: small"));
  EXPECT_THAT(error("group: all\ntask: [zzz]\n"),
              AllOf(HasSubstr("there is no task zzz\n  try: the path of a YAML file"),
                    HasSubstr("hellaswag")));
  folder.write("code.yaml", "task: coded\nprocess_docs: !function utils.f\n");
  EXPECT_THAT(error("group: all\ntask: [coded]\n"),
              HasSubstr("code.yaml:2: the tag '!function' is not allowed"));
  EXPECT_THAT(error("group: all\ntask: [all]\n"), HasSubstr("the group all contains itself"));
  EXPECT_THAT(error("group: all\ntask: [{num_fewshot: 2}]\n"), HasSubstr("try: task: NAME"));
  EXPECT_THAT(error("group: all\ntask: [5]\n"), HasSubstr("try: the name of a task"));
  EXPECT_THAT(error("group: all\n"), HasSubstr("has no tasks\n  try: task: [NAME]"));
  EXPECT_THAT(error("group: all\ntask: [small]\naggregate_metric_lst: 1\n"),
              HasSubstr("aggregate_metric_lst is not known\n  try: aggregate_metric_list"));
  EXPECT_THAT(error("group: all\ntask: [small]\naggregate_metric_list: acc\n"),
              HasSubstr("try: aggregate_metric_list: [{metric: acc}]"));
  EXPECT_EQ(error("group: all\ntask: [small]\naggregate_metric_list: {metric: acc}\n"), "");
  EXPECT_THAT(error("group: all\ntask: [small, {task: small, num_fewshot: 2}]\n"),
              HasSubstr("the task small is used twice, with different settings\n  try: a task file "
                        "with include: small.yaml and task: small_2"));
  EXPECT_THAT(error("group: all\ntask: [small, {group: all2, task: [small]}, {group: all2, task: "
                    "[piqa]}]\n"),
              HasSubstr("there is another group all2 with other tasks\n  try: group: all2_2"));
  EXPECT_THAT(error(SmallTask::yaml({"group: glue"})),
              HasSubstr("the keys of a task\n  try: tag: \"glue\" in place of group: \"glue\""));
}

} // namespace
} // namespace pentatron::evaluation
