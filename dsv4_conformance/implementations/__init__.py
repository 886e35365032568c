"""What the suites can be pointed at: the contract of adapters, their registry, and the adapters that ship."""
