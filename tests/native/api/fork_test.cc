// SPDX-License-Identifier: Apache-2.0
// What a forked child of a rank may do: nothing, and it says so; and what it keeps: none of the job's sockets.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "check.h"
#include "horovod/horovod.h"
#include "platform/private_descriptors.h"

namespace {

hvd_status fresh() {
  hvd_status status{};
  status.size = sizeof status;
  return status;
}

hvd_context* start(int rank, const std::vector<hvd_link>& links) {
  const int32_t hosts[] = {0, 1};
  hvd_options options{};
  options.size = sizeof options;
  options.rank = rank;
  options.world_size = 2;
  options.generation = 1;
  options.host_of_rank = hosts;
  options.links = links.data();
  options.nlinks = static_cast<uint32_t>(links.size());
  hvd_context* context = nullptr;
  hvd_status status = fresh();
  EXPECT(hvd_start(&options, &context, &status) == HVD_OK);
  return context;
}

int barrier(hvd_context* context, hvd_status* status) {
  hvd_request request{};
  request.size = sizeof request;
  request.kind = HVD_BARRIER;
  request.name = "wall";
  hvd_handle handle = 0;
  if (const int code = hvd_submit(context, &request, &handle, status); code != HVD_OK) return code;
  const int code = hvd_wait(context, handle, 20000, status);
  hvd_release(context, handle);
  return code;
}

}  // namespace

TEST(a_forked_child_is_told_so_and_holds_no_socket_of_the_job) {
  int control[2], data[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data) == 0);
  hvd_context* contexts[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      contexts[rank] =
          start(rank, {{1 - rank, HVD_LINK_CONTROL, control[rank], 0}, {1 - rank, HVD_LINK_DATA, data[rank], 0}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int fd : {control[0], control[1], data[0], data[1]}) close(fd);

  const pid_t child = fork();
  if (child == 0) {
    hvd_status status = fresh();
    if (barrier(contexts[0], &status) != HVD_FORKED || std::strstr(status.text, "forked") == nullptr) _exit(1);
    for (int fd = 3; fd < 64; ++fd) {
      int type = 0;
      socklen_t length = sizeof type;
      if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0) _exit(2);
    }
    hvd_free(contexts[0]);
    _exit(0);
  }
  int outcome = -1;
  EXPECT(waitpid(child, &outcome, 0) == child);
  EXPECT(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);

  threads.clear();
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      hvd_status status = fresh();
      EXPECT(barrier(contexts[rank], &status) == HVD_OK);
      EXPECT(hvd_stop(contexts[rank], 5000, &status) == HVD_OK);
      hvd_free(contexts[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();

  // Its child may become a rank of another world.
  const pid_t later = fork();
  if (later == 0) _exit(hvd::in_forked_child() ? 1 : 0);
  EXPECT(waitpid(later, &outcome, 0) == later);
  EXPECT(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
}

TEST_MAIN
