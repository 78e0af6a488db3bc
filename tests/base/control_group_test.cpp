// The limits of control groups, from files like those of Linux.
#include "pentatron/base/control_group.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace pentatron {
namespace {

constexpr int64_t kGb = int64_t{1} << 30;
constexpr const char* kUnlimited = "9223372036854771712\n"; // version 1

class ControlGroups : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = root / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void limit(const std::string& group, int64_t gigabytes) {
    write("sys/fs/cgroup/" + group + "/memory.max", std::to_string(gigabytes * kGb) + "\n");
  }
  void use(const std::string& group, int64_t gigabytes) {
    write("sys/fs/cgroup/" + group + "/memory.current", std::to_string(gigabytes * kGb) + "\n");
  }

  const TemporaryFolder temporary;
  const std::filesystem::path root = temporary.path();
};

TEST_F(ControlGroups, AreNotThereOnOtherSystems) {
  const ControlGroup group = read_control_group(root);
  EXPECT_FALSE(group.cpu_quota.has_value());
  EXPECT_FALSE(group.memory_limit_bytes.has_value());
  EXPECT_FALSE(group.memory_free_bytes.has_value());
  EXPECT_FALSE(count_memory_kills(root).has_value());
}

TEST_F(ControlGroups, TheLimitIsTheSmallestAlongThePath) {
  write("proc/self/cgroup", "0::/system.slice/job_7/step_0\n");
  write("sys/fs/cgroup/system.slice/job_7/step_0/memory.max", "max\n");
  limit("system.slice/job_7", 8);
  use("system.slice/job_7", 3);
  write("sys/fs/cgroup/system.slice/job_7/memory.stat",
        "anon 1\ninactive_file 1073741824\nactive_file 0\n");
  limit("system.slice", 16);
  write("sys/fs/cgroup/system.slice/job_7/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/system.slice/cpu.max", "250000 100000\n");
  ControlGroup group = read_control_group(root);
  EXPECT_EQ(group.memory_limit_bytes, 8 * kGb);
  EXPECT_EQ(group.memory_used_bytes, 2 * kGb);
  EXPECT_EQ(group.memory_free_bytes, 6 * kGb);
  EXPECT_EQ(group.cpu_quota, 2.5);
  limit("system.slice/job_7/step_0", 4);
  group = read_control_group(root);
  EXPECT_EQ(group.memory_limit_bytes, 4 * kGb);
  // Others that share a larger limit may leave less.
  use("system.slice", 15);
  group = read_control_group(root);
  EXPECT_EQ(group.memory_limit_bytes, 4 * kGb);
  EXPECT_EQ(group.memory_free_bytes, kGb);
}

TEST_F(ControlGroups, OfNoLimitNothingIsKnown) {
  write("proc/self/cgroup", "4:memory:/user\n0::/user\n");
  write("sys/fs/cgroup/user/memory.max", "max\n");
  write("sys/fs/cgroup/memory/user/memory.limit_in_bytes", kUnlimited);
  write("sys/fs/cgroup/memory/user/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
  const ControlGroup group = read_control_group(root);
  EXPECT_FALSE(group.memory_limit_bytes.has_value());
  EXPECT_FALSE(group.memory_free_bytes.has_value());
}

TEST_F(ControlGroups, OfVersion1HaveAPathForEachController) {
  write("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/slurm/uid_1\n3:cpu,cpuacct:/slurm\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", kUnlimited);
  write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", std::to_string(6 * kGb));
  write("sys/fs/cgroup/memory/slurm/uid_1/memory.limit_in_bytes", kUnlimited);
  write("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", std::to_string(5 * kGb));
  write("sys/fs/cgroup/memory/slurm/memory.stat",
        "inactive_file 7\nactive_file 7\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
  write("sys/fs/cgroup/cpu/slurm/cpu.cfs_quota_us", "150000\n");
  write("sys/fs/cgroup/cpu/slurm/cpu.cfs_period_us", "50000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  ControlGroup group = read_control_group(root);
  EXPECT_EQ(group.memory_limit_bytes, 6 * kGb);
  EXPECT_EQ(group.memory_used_bytes, 4 * kGb);
  EXPECT_EQ(group.memory_free_bytes, 2 * kGb);
  EXPECT_EQ(group.cpu_quota, 3);
  // A limit of a group that is not mounted here.
  write("sys/fs/cgroup/memory/slurm/uid_1/memory.stat", "hierarchical_memory_limit 2147483648\n");
  EXPECT_EQ(read_control_group(root).memory_limit_bytes, 2 * kGb);
}

/// Of version 2: 8 GB, of which 7 are used.
TEST_F(ControlGroups, LeaveRoomWhereTheKernelCanGiveMemoryBack) {
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_FALSE(read_control_group(root).memory_room_bytes.has_value());
  limit("job", 8);
  use("job", 7);
  EXPECT_FALSE(read_control_group(root).memory_room_bytes.has_value()); // how much is files?
  write("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 0\nactive_file 0\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, kGb);
  write("sys/fs/cgroup/job/memory.stat",
        "inactive_file 1073741824\nactive_file 2147483648\nslab_reclaimable 1073741824\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 5 * kGb);
  EXPECT_EQ(read_control_group(root).memory_free_bytes, 4 * kGb);
  // Swap: what the machine has and the group may use.
  write("proc/meminfo", "MemTotal:  1 kB\nSwapTotal: 4194304 kB\nSwapFree:  3145728 kB\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 8 * kGb);
  write("sys/fs/cgroup/job/memory.swap.max", "max\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 8 * kGb);
  write("sys/fs/cgroup/job/memory.swap.max", "2147483648\n");
  write("sys/fs/cgroup/job/memory.swap.current", "1073741824\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 6 * kGb);
  write("sys/fs/cgroup/job/memory.swap.max", "0\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 5 * kGb);
  // The least of all groups around it.
  limit("", 8);
  use("", 8);
  write("sys/fs/cgroup/memory.stat", "inactive_file 0\nactive_file 0\n");
  write("sys/fs/cgroup/memory.swap.max", "0\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 0);
}

/// Of version 1: 8 GB, of which 7 are used, one of them by files.
TEST_F(ControlGroups, OfVersion1LeaveRoomInMemoryAndSwapTogether) {
  const std::string group = "sys/fs/cgroup/memory/job/";
  write("proc/self/cgroup", "4:memory:/job\n");
  write("proc/meminfo", "SwapFree:  4194304 kB\n");
  write(group + "memory.limit_in_bytes", std::to_string(8 * kGb));
  write(group + "memory.usage_in_bytes", std::to_string(7 * kGb));
  write(group + "memory.stat", "inactive_file 0\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 6 * kGb);
  write(group + "memory.memsw.limit_in_bytes", std::to_string(10 * kGb));
  write(group + "memory.memsw.usage_in_bytes", std::to_string(8 * kGb)); // one is on the disk
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 3 * kGb);
  write(group + "memory.kmem.usage_in_bytes", std::to_string(kGb));
  EXPECT_EQ(read_control_group(root).memory_room_bytes, 4 * kGb);
}

TEST_F(ControlGroups, OfBothVersionsAreRead) {
  write("proc/self/cgroup", "4:memory:/job\n0::/job\n");
  write("sys/fs/cgroup/unified/job/cgroup.procs", "1\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(3 * kGb));
  EXPECT_EQ(read_control_group(root).memory_limit_bytes, 3 * kGb);
  limit("unified/job", 2);
  EXPECT_EQ(read_control_group(root).memory_limit_bytes, 2 * kGb);
}

TEST_F(ControlGroups, OfAContainerMayBeginBelowThePath) {
  write("proc/self/cgroup", "4:memory:/docker/0123/inner\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(2 * kGb));
  EXPECT_EQ(read_control_group(root).memory_limit_bytes, 2 * kGb);
  write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", std::to_string(kGb));
  EXPECT_EQ(read_control_group(root).memory_limit_bytes, kGb);
  write("proc/self/cgroup", "0::/../other\n"); // of another namespace
  limit("", 5);
  EXPECT_EQ(read_control_group(root).memory_limit_bytes, 2 * kGb);
}

TEST_F(ControlGroups, CountWhatTheKernelKilled) {
  write("proc/vmstat", "nr_free_pages 7\noom_kill 4\n");
  EXPECT_EQ(count_memory_kills(root), 4);
  write("proc/self/cgroup", "4:memory:/job\n0::/job/step\n");
  write("sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(count_memory_kills(root), 2);
  write("sys/fs/cgroup/job/step/memory.events", "low 0\noom 1\noom_kill 0\n");
  EXPECT_EQ(count_memory_kills(root), 0);
  write("sys/fs/cgroup/job/memory.events", "low 0\noom 1\noom_kill 1\n"); // of another step
  EXPECT_EQ(count_memory_kills(root), 1);
}

} // namespace
} // namespace pentatron
