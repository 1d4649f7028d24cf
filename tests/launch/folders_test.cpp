#include "launch/folders.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "core/files.h"
#include "launch/guardian.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant;
using namespace accelerant::launch;

class Folders : public testing::Test {
 protected:
  Folders() {
    if (const char* root = std::getenv("TMPDIR")) before_ = root;
    setenv("TMPDIR", folder_.path().c_str(), 1);
  }
  ~Folders() override {
    if (before_) {
      setenv("TMPDIR", before_->c_str(), 1);
    } else {
      unsetenv("TMPDIR");
    }
  }

  // Another folder of the same name, as other users can make it once the first is gone.
  static void take_name(const std::string& path) {
    remove_tree(path);
    make_folder(path);
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
    make_folder(join_path(path, "theirs"));
  }

  TempFolder folder_;

 private:
  std::optional<std::string> before_;
};

TEST_F(Folders, ATemporaryFolderIsRemoved) {
  {
    const TemporaryFolder temporary;
    make_folders(join_path(temporary.path(), "a/b"));
    EXPECT_EQ(folder_of(temporary.path()), folder_.path());
  }
  EXPECT_TRUE(entries_of(folder_.path()).empty());
}

TEST_F(Folders, AFolderThatSomebodyElseHasMadeIsNotRemoved) {
  std::string path;
  {
    const TemporaryFolder temporary;
    path = temporary.path();
    take_name(path);
    EXPECT_TRUE(contains(error_of([&] { temporary.restore(); }), "was replaced"));
  }
  EXPECT_TRUE(is_folder(join_path(path, "theirs")));
}

TEST_F(Folders, NorIsALink) {
  std::string path;
  {
    const TemporaryFolder temporary;
    path = temporary.path();
    remove_tree(path);
    ASSERT_EQ(symlink(folder_.path().c_str(), path.c_str()), 0);
  }
  EXPECT_TRUE(is_link(path));
}

TEST_F(Folders, TheGuardianRemovesTheFolderUnlessSomebodyElseHasMadeIt) {
  const std::string ours = make_temporary_folder();
  const std::string other = make_temporary_folder();
  make_folder(join_path(ours, "a"));
  take_name(other);
  { const Guardian guardian(ours); }
  { const Guardian guardian(other); }
  EXPECT_FALSE(path_exists(ours));
  EXPECT_TRUE(is_folder(join_path(other, "theirs")));
}

}  // namespace
