"""A User-Mode Linux kernel for netns testbeds: booting it, running commands in it, keeping one."""
