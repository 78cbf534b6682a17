"""The key-value application's commands. Its state machine is in `tara.application`, its client in `tara.client`."""
