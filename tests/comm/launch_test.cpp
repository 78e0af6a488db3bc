#include "pentatron/comm/launch.h"

#include "pentatron/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::comm {
namespace {

using testing::HasSubstr;

Environment torchrun(int rank = 3, int world = 8) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank % 4)},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "run7"}};
}

Environment mpirun(int rank = 2, int world = 4) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(world)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(world)}};
}

Environment srun(int rank = 9) {
  return {{"SLURM_JOB_ID", "12"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NTASKS", "11"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};
}

Environment operator+(Environment a, const Environment& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

std::string error_of(const Environment& environment) {
  try {
    detect_launch(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Launch, IsOneRankWithoutALauncher) {
  const Launch launch = detect_launch(Environment{{"PATH", "/bin"}, {"MASTER_ADDR", "node1"}});
  EXPECT_EQ(launch.launcher, Launcher::kNone);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_FALSE(launch.spans_machines());
}

TEST(Launch, ReadsTorchrun) {
  const Launch launch = detect_launch(torchrun(6));
  EXPECT_EQ(launch.launcher, Launcher::kTorchrun);
  EXPECT_EQ(launch.rank, 6);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.master_addr, "node1");
  EXPECT_EQ(launch.master_port, 29500);
  EXPECT_EQ(launch.job, "run7");
  EXPECT_TRUE(launch.spans_machines());
  EXPECT_EQ(launch.describe(), "rank 6 of 8 by torchrun");
}

TEST(Launch, ReadsMpirun) {
  const Launch launch = detect_launch(mpirun());
  EXPECT_EQ(launch.launcher, Launcher::kMpirun);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_TRUE(launch.master_addr.empty());
  EXPECT_FALSE(launch.spans_machines());
}

TEST(Launch, ReadsSrunWithUnevenMachines) {
  const Launch launch = detect_launch(srun());
  EXPECT_EQ(launch.launcher, Launcher::kSrun);
  EXPECT_EQ(launch.rank, 9);
  EXPECT_EQ(launch.world_size, 11);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 3);
  EXPECT_EQ(launch.job, "12.0");
  EXPECT_EQ(detect_launch(srun() + Environment{{"SLURM_NODEID", "1"}}).local_size, 4);
}

TEST(Launch, CountsTheStepNotTheAllocation) {
  const Launch launch = detect_launch(srun(1) + Environment{{"SLURM_STEP_NUM_TASKS", "2"},
                                                            {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                                            {"SLURM_NODEID", "0"}});
  EXPECT_EQ(launch.world_size, 2);
}

TEST(Launch, TakesABatchShellForOneRank) {
  const Launch launch = detect_launch(without(srun(0), "SLURM_STEP_ID"));
  EXPECT_EQ(launch.launcher, Launcher::kNone);
  EXPECT_EQ(launch.world_size, 1);
}

TEST(Launch, PrefersTorchrunToItsAgentsLauncher) {
  const Launch launch = detect_launch(srun() + torchrun());
  EXPECT_EQ(launch.launcher, Launcher::kTorchrun);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(detect_launch(mpirun() + torchrun()).launcher, Launcher::kTorchrun);
}

TEST(Launch, PrefersMpirunToTheStepOfItsDaemon) {
  EXPECT_EQ(detect_launch(srun() + mpirun()).launcher, Launcher::kMpirun);
}

TEST(Launch, AcceptsVariablesOfTwoLaunchersThatAgree) {
  const Environment both = without(torchrun(2, 4), "TORCHELASTIC_RUN_ID") + mpirun(2, 4);
  const Launch launch = detect_launch(both);
  EXPECT_EQ(launch.launcher, Launcher::kMpirun);
  EXPECT_EQ(launch.master_addr, "node1");
  EXPECT_EQ(launch.master_port, 29500);
}

TEST(Launch, RefusesVariablesOfTwoLaunchersThatDisagree) {
  const Environment plain = without(torchrun(3, 4), "TORCHELASTIC_RUN_ID");
  EXPECT_EQ(error_of(plain + mpirun(2, 4)),
            "RANK=3 contradicts OMPI_COMM_WORLD_RANK=2: two launchers number the ranks\n  try: "
            "unset RANK WORLD_SIZE LOCAL_RANK, or start the program with one launcher");
  EXPECT_THAT(error_of(plain + mpirun(3, 5)),
              HasSubstr("WORLD_SIZE=4 contradicts OMPI_COMM_WORLD_SIZE=5"));
  EXPECT_THAT(error_of(plain + srun()), HasSubstr("RANK=3 contradicts SLURM_PROCID=9"));
}

TEST(Launch, RefusesHalfAnEnvironment) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    EXPECT_THAT(error_of(without(torchrun(), name)),
                testing::AllOf(HasSubstr(std::string(name) + " is not"), HasSubstr("\n  try: ")));
  EXPECT_THAT(error_of(without(torchrun(6), "LOCAL_WORLD_SIZE")), HasSubstr("LOCAL_WORLD_SIZE"));
  for (const auto& [name, value] : mpirun())
    EXPECT_THAT(error_of(without(mpirun(), name)),
                testing::AllOf(HasSubstr(name + " is not"), HasSubstr("\n  try: ")));
  for (const char* name : {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"})
    EXPECT_THAT(error_of(without(srun(), name)),
                testing::AllOf(HasSubstr(std::string(name) + " is not"), HasSubstr("\n  try: ")));
}

TEST(Launch, AssumesOneMachineWhereLocalAndWorldRankAgree) {
  const Environment one_machine = without(torchrun(3, 4), "LOCAL_WORLD_SIZE");
  EXPECT_EQ(detect_launch(one_machine).local_size, 4);
}

TEST(Launch, RefusesNumbersThatAreNone) {
  for (const char* text : {"", " 1", "1 ", "-1", "+1", "0x1", "1.0", "99999999999999999999", "8"})
    EXPECT_THAT(error_of(torchrun() + Environment{{"RANK", text}}),
                HasSubstr("is not an integer from 0 to 7"))
        << text;
  EXPECT_THAT(error_of(torchrun() + Environment{{"WORLD_SIZE", "0"}}), HasSubstr("from 1 to"));
  EXPECT_THAT(error_of(torchrun() + Environment{{"MASTER_PORT", "65536"}}), HasSubstr("65535"));
  EXPECT_THAT(error_of(torchrun() + Environment{{"MASTER_ADDR", ""}}), HasSubstr("empty"));
  EXPECT_THAT(error_of(mpirun() + Environment{{"OMPI_COMM_WORLD_RANK", "4"}}),
              HasSubstr("OMPI_COMM_WORLD_RANK=4"));
  for (const char* text : {"", "x", "4(x", "4(x0)", "4(y2),3", "0", "4(x2)"})
    EXPECT_THAT(error_of(srun() + Environment{{"SLURM_STEP_TASKS_PER_NODE", text}}),
                HasSubstr("does not contain the number of tasks of node 2"))
        << text;
}

TEST(Launch, RefusesLocalRanksThatDoNotFit) {
  EXPECT_THAT(error_of(torchrun() + Environment{{"LOCAL_RANK", "4"}}), HasSubstr("LOCAL_RANK=4"));
  EXPECT_THAT(error_of(torchrun() + Environment{{"LOCAL_WORLD_SIZE", "9"}}),
              HasSubstr("LOCAL_WORLD_SIZE=9"));
}

TEST(Launch, ReadsThisProcess) {
  EXPECT_FALSE(process_environment().empty());
  EXPECT_NO_THROW(detect_launch());
}

} // namespace
} // namespace pentatron::comm
