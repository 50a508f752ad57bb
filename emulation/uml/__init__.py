"""User-Mode Linux kernels for netns testbeds: start, commands inside, and kernels that stay."""
