"""Plan how a checkpoint fills a model: loaders, recorded conversions, and the load report."""
