#pragma once

// Faults of files at a chosen call: a library to be loaded before libc, by LD_PRELOAD or by linking
// it. It counts the calls that change files - open for writing, write, fsync, rename, renameat2,
// link, unlink, rmdir, mkdir - whose path is under a folder, and at one of them does what the
// environment says:
//
//   FAULTY_FILES=/folder         the folder; none: nothing happens
//   FAULTY_FILES_CALL=12         the call, from 0; none: none. "12-": it and all that follow
//   FAULTY_FILES_ACT=kill_before kill_before, kill_after: SIGKILL; ENOSPC, EIO, EROFS, EINTR: the
//                                call fails so; short: a write writes half; count: nothing
//   FAULTY_FILES_RANK=1          only in the process whose variable RANK is this
//   FAULTY_FILES_NAME=params     only calls whose path has this text in it
//   FAULTY_FILES_KIND=fsync      only calls of this function
//   FAULTY_FILES_LOG=/file       gets a line for each such call: its name and its path
//   FAULTY_FILES_NO_EXCHANGE=1   renameat2 fails with EINVAL, as where a file system has no
//   exchange FAULTY_FILES_NO_SYNC=1       fsync does nothing: a process that is killed loses
//   nothing by it

/// Reads the environment again, and counts from 0.
extern "C" __attribute__((visibility("default"))) void plan_faulty_files();
/// The calls so far.
extern "C" __attribute__((visibility("default"))) long count_faulty_files();
